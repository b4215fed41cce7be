"""A run that is repeated leaves the same bits; what would prevent that is refused."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import shared

from tfdp.base import determinism
from tfdp.base.determinism import process_seed

TRAINS = pathlib.Path(__file__).parent / "scripts" / "trains.py"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
CLUSTER = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "2", "--timeout", "280", "--"]


def run(program, *words, launch=()):
    """Starts a program; what it says where it fails, else what it prints."""
    ended = subprocess.run(
        [*launch, sys.executable, *program, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.stderr if ended.returncode else ended.stdout


def trained(folder, seed, launch=()):
    """The checksums that the ranks print after training; a manifest is left in `folder`."""
    said = run([str(TRAINS)], seed, folder, launch=launch)
    checksums = re.findall(r"checksum (\w+)", said)
    assert checksums, said[-3000:]
    return checksums


def trained_at_once(folder, seeds):
    """Checksums for each of the seeds, from runs that take the cores from each other."""
    with concurrent.futures.ThreadPoolExecutor(len(seeds)) as pool:
        return list(pool.map(lambda seed: trained(folder, seed), seeds))


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The checksums of two runs of one process with the same seed."""

    def make(path):
        path.write_text(json.dumps(trained_at_once(tmp_path_factory.mktemp("twice"), [1, 1])))

    return json.loads(shared.made_once(tmp_path_factory, "twice.json", make).read_text())


@pytest.mark.multiprocess
def test_two_replicas_of_one_process_leave_the_same_bits_in_every_run(twice):
    first, again = twice
    assert first == again


@pytest.mark.exhaustive("test_two_replicas_of_one_process_leave_the_same_bits_in_every_run")
@pytest.mark.multiprocess
def test_another_seed_leaves_other_bits(tmp_path, twice):
    assert trained(tmp_path, 2) != twice[0]


@pytest.mark.exhaustive("test_two_replicas_of_one_process_leave_the_same_bits_in_every_run")
@pytest.mark.multiprocess
def test_two_processes_leave_the_same_bits_in_every_run(tmp_path):
    first, again = trained(tmp_path, 1, CLUSTER), trained(tmp_path, 1, CLUSTER)
    assert len(first) == 2
    assert first == again
    assert first[0] == first[1]
    (path,) = tmp_path.iterdir()  # rank 0 writes
    manifest = json.loads(path.read_text())
    assert manifest["seeds"]["set_by"] == "tfdp.enable_determinism"
    assert manifest["seeds"]["deterministic"] is True
    assert manifest["strategy"]["world_size"] == manifest["strategy"]["replicas"] == 2
    assert manifest["strategy"]["hosts"] == [0, 0]
    assert manifest["data"]["examples"] == 200
    assert manifest["command"][-2:] == ["1", str(tmp_path)]


IMPORTS = "import os, keras, tensorflow as tf, tfdp\n"
AUTO = """
os.environ.pop("TFDP_TOPOLOGY_FILE", None)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
tfdp.enable_determinism(1)
try:
    tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"], topology="auto")
except ValueError as error:
    print(error)
os.environ["TFDP_TOPOLOGY_FILE"] = "topology.json"
strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"], topology="auto")
print(strategy.topology.describe(), os.path.exists("topology.json"))
"""
ANOTHER_SEED = """
import json
tfdp.enable_determinism(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
tfdp.DataParallelStrategy()
"""


@pytest.mark.exhaustive(
    "strategy/test_auto_topology.py::test_a_file_keeps_the_decision_and_gives_it_back"
)
@pytest.mark.multiprocess
def test_a_topology_is_not_measured_anew_in_every_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused, decided = run(["-c", IMPORTS + AUTO]).splitlines()
    assert "TFDP_TOPOLOGY_FILE must name a file" in refused
    assert "Do `export TFDP_TOPOLOGY_FILE=topology.json`" in refused
    assert decided.endswith(" True")


@pytest.mark.exhaustive(
    "keras/test_across_processes.py::test_in_two_processes_the_telling_tests_pass"
)
@pytest.mark.multiprocess
def test_ranks_with_different_seeds_are_named():
    said = run(["-c", IMPORTS + ANOTHER_SEED], launch=CLUSTER)
    assert "the seed of `tfdp.enable_determinism` is 0 on rank 0 and 1 on rank 1" in said


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (None, TypeError, "must be a whole number; received None"),
        (True, TypeError, "received True"),
        (1.0, TypeError, r"received 1\.0"),
        (-1, ValueError, "received -1"),
        (2**32, ValueError, "from 0 to"),
    ],
)
def test_a_seed_that_is_none_is_refused(seed, error, message):
    with pytest.raises(error, match=message):
        determinism.enable_determinism(seed)
    assert determinism.chosen_seed() is None


def test_it_comes_too_late_after_a_strategy(monkeypatch):
    monkeypatch.setattr(process_seed._STATE, "strategy_made", True)
    with pytest.raises(RuntimeError, match=r"before `tfdp.DataParallelStrategy\(\)`"):
        determinism.enable_determinism(1)


def test_it_comes_too_late_after_a_layer(monkeypatch):
    monkeypatch.setattr(process_seed._STATE, "strategy_made", False)
    keras.layers.Dense(1)
    with pytest.raises(RuntimeError, match=r"has made: dense.*keras\.utils\.clear_session\(\)"):
        determinism.enable_determinism(1)


@pytest.fixture
def recorded(monkeypatch):
    """What would be called in TensorFlow, which no other test of this process could bear."""
    import tensorflow as tf

    calls = []
    monkeypatch.setattr(process_seed, "_STATE", process_seed._State())
    monkeypatch.setenv(WORKSPACE, "")  # and as it was after the test
    monkeypatch.delenv(WORKSPACE)
    monkeypatch.setattr(
        tf.config.experimental, "enable_op_determinism", lambda: calls.append("determinism")
    )
    keras.utils.clear_session(free_memory=False)
    return calls


def test_a_second_call_sets_the_seeds_again(recorded):
    determinism.enable_determinism(np.int64(3))
    drawn = keras.random.normal([4]), np.random.rand()
    keras.layers.Dense(1)
    process_seed.note_strategy_made()
    determinism.enable_determinism(3)
    again = keras.random.normal([4]), np.random.rand()
    assert recorded == ["determinism", "determinism"]
    np.testing.assert_array_equal(again[0], drawn[0])
    assert again[1] == drawn[1]


def test_the_seeds_are_those_that_were_set_last(recorded):
    determinism.enable_determinism(3)
    found = {"seed": 3, "set_by": "tfdp.enable_determinism", "deterministic": False}
    assert determinism.seeds() == found
    keras.utils.set_random_seed(4)
    found = {"seed": 4, "set_by": "keras.utils.set_random_seed", "deterministic": False}
    assert determinism.seeds() == found
    import tensorflow as tf

    tf.random.set_seed(5)
    found = {"seed": 5, "set_by": "tf.random.set_seed", "deterministic": False}
    assert determinism.seeds() == found


@pytest.mark.parametrize(
    ("given", "chosen"), [(None, ":4096:8"), (":4096:8", ":4096:8"), (":16:8", ":16:8")]
)
def test_streams_of_a_gpu_have_workspaces_of_their_own(recorded, monkeypatch, given, chosen):
    if given is not None:
        monkeypatch.setenv(WORKSPACE, given)
    determinism.enable_determinism(1)
    assert os.environ[WORKSPACE] == chosen
    assert recorded == ["determinism"]


def test_a_workspace_with_which_cublas_does_not_repeat_itself_is_refused(recorded, monkeypatch):
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with pytest.raises(ValueError, match=r"or :16:8, .* but it is ':0:0'. Do `unset CUBLAS_"):
        determinism.enable_determinism(1)
    assert not recorded and determinism.chosen_seed() is None


def test_libraries_of_the_process_read_the_workspace():
    read = (
        "import ctypes; tfdp.enable_determinism(1); getenv = ctypes.CDLL(None).getenv;"
        "getenv.restype = ctypes.c_char_p; print(getenv(b'CUBLAS_WORKSPACE_CONFIG').decode())"
    )
    assert run(["-c", IMPORTS + read]).splitlines()[-1] == ":4096:8"
