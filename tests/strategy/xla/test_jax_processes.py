"""Several processes, each with its own devices, train as one device does."""

import os
import pathlib
import subprocess
import sys

import keras
import meeting
import numpy as np
import pytest
import tiers

pytest.importorskip("jax")

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
pytestmark = pytest.mark.multiprocess


def started(script, processes, devices, *arguments):
    """Starts the processes, each with the arguments, or what they give for its number."""
    address = f"127.0.0.1:{meeting.free_ports(1)[0]}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = []
    for number in range(processes):
        own = [each(number) if callable(each) else each for each in arguments]
        command = [sys.executable, SCRIPTS / script, address, processes, number, *own]
        running.append(subprocess.Popen(list(map(str, command)), env=environment, **pipes))
    return running


def ended(running, code=0):
    """Waits for the processes, which must end with this code, and returns what they say."""
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [code] * len(running), "\n".join(said)
    return said


def trained(processes, devices, kind, shard, folder):
    """Returns what each process has written."""
    files = [folder / f"{processes}-{number}.npz" for number in range(processes)]
    script = "trains_in_processes.py"
    ended(started(script, processes, devices, kind, shard, lambda number: files[number]))
    return [dict(np.load(file)) for file in files]


@pytest.mark.parametrize(
    ("kind", "shard"),
    tiers.first_of(
        ("pipeline", "parameters"),
        *(("arrays", None), ("pipeline", None), ("unseeded", None), ("strings", None)),
        *(("arrays on a mesh", None), ("pipeline on a mesh", "parameters")),
    ),
)
def test_they_train_as_one_device(kind, shard, tmp_path):
    (one,) = trained(1, 1, kind, None, tmp_path)
    first, second = trained(2, 4 if "mesh" in kind else 2, kind, shard, tmp_path)
    for name, expected in one.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], expected, rtol=2e-4, atol=2e-5, err_msg=name)


def test_loops_of_their_own_train_as_that_of_one_device(tmp_path):
    for processes in (1, 2):
        script = "loops_in_processes.py"
        ended(started(script, processes, 2, lambda number, n=processes: tmp_path / f"{n}-{number}"))
    first, second = (dict(np.load(tmp_path / f"2-{number}.npz")) for number in range(2))
    for name, expected in np.load(tmp_path / "1-0.npz").items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "error"),
    tiers.first_of(
        ("unlike epochs", "`fit` must be alike on all ranks, but argument epochs is"),
        ("mesh of columns", "With several processes `mesh` must begin with its axis"),
        (
            "unlike batches",
            "the same whole batch, but the batch on rank 1 is another one",
        ),
    ),
)
def test_what_processes_do_unlike_each_other_is_refused(kind, error, tmp_path):
    arguments = kind, None, lambda number: tmp_path / f"{number}.npz"
    for said in ended(started("trains_in_processes.py", 2, 1, *arguments), code=1):
        assert error in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", tiers.first_of("callback", "generator", "pipeline", "step", "own code", "goes on")
)
def test_an_error_of_one_ends_all_within_seconds_and_is_named(how):
    running = started("fails_in_processes.py", 2, 1, how)
    first, last = (process.communicate(timeout=300)[0] for process in running)
    assert running[0].returncode == 1 and running[1].returncode != 0, first + last
    place = "callback" if how == "goes on" else how
    assert f"a mistake in the {place}" in last
    assert "RankLostError: Rank 0: lost rank 1" in first
    assert f"a mistake in the {place}" in first


def kept_by(folder, is_ended=False):
    """Trains in two processes, of which the last may be told to end; returns what they say."""
    code = os.EX_TEMPFAIL if is_ended else 0
    return ended(started("checkpoints_in_processes.py", 2, 2, is_ended, folder), code)


def assert_one_training(folder, expected):
    """Asserts that both processes have the same arrays, and that one of them wrote the files."""
    for number in range(2):
        found = dict(np.load(folder / f"{number}.npz"))
        np.testing.assert_array_equal(found["loaded"], expected["saved"])
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert len((folder / "log.csv").read_text().splitlines()) == 1 + 4


@pytest.mark.slow
def test_files_of_parts_are_those_of_one_training(tmp_path):
    kept_by(tmp_path)
    expected = dict(np.load(tmp_path / "0.npz"))
    assert_one_training(tmp_path, expected)
    kept = keras.models.load_model(tmp_path / "end.keras").get_weights()
    np.testing.assert_array_equal(
        np.concatenate([each.ravel() for each in kept]), expected["saved"]
    )


@pytest.mark.exhaustive(
    "strategy/xla/test_jax_distributed.py::"
    "test_a_killed_rank_is_named_and_a_restart_has_the_bits_of_no_end"
)
@pytest.mark.slow
def test_a_checkpoint_of_parts_goes_on_with_the_bits_of_one_training(tmp_path):
    whole, cut_off = tmp_path / "whole", tmp_path / "cut off"
    for folder in (whole, cut_off):
        folder.mkdir()
    kept_by(whole)
    kept_by(cut_off, is_ended=True)
    assert not (cut_off / "end.keras").exists()
    said, _ = kept_by(cut_off)
    assert "The training goes on from" in said
    assert_one_training(cut_off, dict(np.load(whole / "0.npz")))
