"""The whole manifest: what is in it, who writes it, how."""

import json
import subprocess
import sys

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp import topology
from tfdp.callbacks.manifest import write
from tfdp.callbacks.manifest.strict_json import text_of
from tfdp.callbacks.manifest.write import described_model, described_strategy

pytestmark = harness.in_one_process

KEYS = {
    "format",
    "created",
    "command",
    "directory",
    "commit",
    "versions",
    "environment",
    "seeds",
    "data",
    "strategy",
    "model",
    "hardware",
}


def strictly_read(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_program_without_tensorflow_can_write_one(tmp_path):
    path = tmp_path / "manifest.json"
    program = (
        "import sys, tfdp; tfdp.write_manifest(sys.argv[1], data=[1, 2]); "
        "print({'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(path), "--api-token", "abc"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    manifest = strictly_read(path)
    assert said == "set()\n"
    assert manifest.keys() == KEYS
    assert manifest["command"][-3:] == [str(path), "--api-token", "***"]
    assert manifest["versions"]["tfdp"] == tfdp.__version__
    assert manifest["versions"]["tensorflow"].startswith("2.")
    assert manifest["seeds"] == {"seed": None, "set_by": None, "deterministic": False}
    assert manifest["hardware"]["cores"] >= 1
    assert manifest["hardware"]["memory_bytes"] > 2**20


def test_the_file_is_what_is_returned_and_is_strict_json(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text("old")
    with harness.strategy(2, topology="tree", bucket_bytes=2**21).scope():
        model = harness.dense_model(optimizer=keras.optimizers.SGD(float("inf")))
    returned = tfdp.write_manifest(path, model, harness.regression_data())
    assert strictly_read(path) == returned
    assert list(tmp_path.iterdir()) == [path]
    assert returned["model"]["optimizer"]["class"] == "SGD"
    assert returned["model"]["optimizer"]["learning_rate"] == "inf"
    assert returned["model"]["parameters"] == 5 * 6 + 6 + 6 + 1
    assert returned["model"]["dtype_policy"] == "float32"
    assert returned["strategy"]["topology"] == {"name": "tree"}
    assert returned["strategy"]["replicas"] == 2
    assert returned["strategy"]["bucket_bytes"] == 2**21
    assert returned["strategy"]["options"]["devices"] == ["CPU:0", "CPU:1"]
    assert returned["data"]["arrays"] == {"0": "float32 [35, 5]", "1": "float32 [35, 1]"}


def test_without_a_model_the_open_scope_tells_the_strategy(tmp_path):
    path = tmp_path / "manifest.json"
    assert tfdp.write_manifest(path)["strategy"] is None
    with harness.strategy(3).scope():
        assert tfdp.write_manifest(path)["strategy"]["replicas"] == 3


def test_only_rank_0_writes(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    workers = {"worker": ["a:1", "b:1"]}
    for rank in (1, 0):
        task = {"cluster": workers, "task": {"type": "worker", "index": rank}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        assert not path.exists()
        assert tfdp.write_manifest(path)["environment"]["TF_CONFIG"] == json.dumps(task)
    assert path.exists()


def test_the_strategy_s_rank_goes_before_the_environment_s(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    strategy = harness.strategy(2)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setattr(type(strategy), "rank", 1)
    with strategy.scope():
        tfdp.write_manifest(path)
    assert not path.exists()


def test_a_folder_that_is_missing_is_named_with_what_makes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Do `mkdir -p .*absent`"):
        tfdp.write_manifest(tmp_path / "absent" / "manifest.json")


def test_git_that_is_not_there_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tfdp.write_manifest(tmp_path / "manifest.json")["commit"] is None


def test_every_key_is_documented():
    for key in KEYS:
        assert f"`{key}`" in write.write_manifest.__doc__, key


def test_numbers_of_numpy_in_an_optimizer_are_numbers(tmp_path):
    model = harness.dense_model(optimizer=tfdp.optimizers.LAMB(1e-3, weight_decay=np.float64(0.5)))
    manifest = tfdp.write_manifest(tmp_path / "manifest.json", model)
    assert manifest["model"]["optimizer"]["weight_decay"] == 0.5
    assert manifest["strategy"] is None


# ---- odd objects


class NoConfig(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule as many programs write it."""

    def __init__(self, peak):
        super().__init__()
        self.peak = peak

    def __call__(self, step):
        return self.peak


class Contrary:
    """Raises whatever attribute it is asked for."""

    def __getattribute__(self, name):
        if name.startswith("__") and name != "__len__":
            return object.__getattribute__(self, name)
        raise RuntimeError(f"no {name}\nat all")


class Unmeasured:
    def __len__(self):
        raise NotImplementedError


class Unidentified:
    def identify(self):
        return 3


class NoArray:
    shape, dtype = (3,), np.dtype("float32")

    def __array__(self, *_):
        raise TypeError("on another device")


@pytest.mark.slow
def test_fit_goes_on_with_a_schedule_that_has_no_configuration(tmp_path):
    optimizer = keras.optimizers.AdamW(NoConfig(0.5), weight_decay=0.25)
    model = harness.dense_model(optimizer)
    harness.fit_arrays(model, callbacks=[tfdp.callbacks.Telemetry(tmp_path)])
    found = strictly_read(tmp_path / "manifest.json")["model"]["optimizer"]
    assert found["class"] == "AdamW"
    assert found["weight_decay"] == 0.25
    assert found["learning_rate"]["class_name"] == "NoConfig"


@pytest.mark.parametrize(
    "model", [Contrary(), object(), 3, NoArray()], ids=lambda m: type(m).__name__
)
def test_a_model_that_cannot_be_described_is_no_error(tmp_path, model):
    path = tmp_path / "manifest.json"
    found = tfdp.write_manifest(path, model)["model"]
    assert strictly_read(path)["model"] == found
    assert found["class"] == type(model).__name__
    assert found["name"].startswith("cannot be described: ")
    assert "\n" not in found["name"]


def test_a_model_keeps_what_can_be_said_beside_what_cannot(tmp_path):
    model = harness.dense_model()
    model.__dict__["optimizer"] = Contrary()
    found = tfdp.write_manifest(tmp_path / "manifest.json", model)["model"]
    assert found["parameters"] == 43
    assert found["optimizer"]["class"] == "Contrary"
    assert "RuntimeError" in found["optimizer"]["incomplete"]


@pytest.mark.parametrize(
    "data",
    [Contrary(), Unmeasured(), Unidentified(), NoArray(), Unidentified],
    ids=["contrary", "unmeasured", "unidentified", "no array", "a class"],
)
def test_data_that_cannot_be_described_is_no_error(tmp_path, data):
    path = tmp_path / "manifest.json"
    found = tfdp.write_manifest(path, data=data)["data"]
    assert strictly_read(path)["data"] == found
    assert found["kind"] == type(data).__name__
    assert found["covers"].startswith("its class; it cannot be described: ")


def test_data_that_holds_itself_is_no_error(tmp_path):
    data = []
    data.append(data)
    found = tfdp.write_manifest(tmp_path / "manifest.json", data=data)["data"]
    assert "RecursionError" in found["covers"]


def test_a_file_that_cannot_be_written_is_an_error_all_the_same(tmp_path):
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(OSError, match=r"manifest\.json"):
        tfdp.write_manifest(tmp_path / "manifest.json", Contrary(), Contrary())


@pytest.mark.slow
def test_what_auto_decided_is_there_with_its_measurements():
    found = described_strategy(harness.strategy(3, topology="auto"))
    assert found["options"]["topology"] == "auto"
    assert found["topology"]["name"] == "auto"
    assert found["topology"]["rules"][-1]["up_to_bytes"] is None
    assert found["topology"]["links"]["bytes_per_second_inside"] > 0
    assert found["bucket_bytes"] >= 2**20
    text_of(found)


def test_a_topology_of_one_s_own_is_shown_as_it_shows_itself():
    class Mine(topology.Ring):
        pass

    found = described_strategy(harness.strategy(2, topology=Mine()))
    assert found["topology"]["name"] == "Mine"
    assert found["options"]["topology"] == found["topology"]["repr"]


def test_a_strategy_of_tensorflow_tells_replicas_and_devices():
    found = described_strategy(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    expected = {"name": "MirroredStrategy", "replicas": 2, "devices": ["CPU:0", "CPU:1"]}
    assert found == expected


def test_the_number_of_replicas_can_be_described_without_a_trace_in_the_loss():
    strategy = harness.strategy(2)
    described_strategy(strategy)
    with strategy.scope():
        model = harness.dense_model()
    assert described_strategy(model.distribute_strategy)["replicas"] == 2


def test_a_model_that_is_not_built_has_no_number_of_parameters():
    found = described_model(keras.Sequential([keras.layers.Dense(3)]))
    assert found["parameters"] is None
    assert found["optimizer"] is None


def test_a_schedule_is_in_the_optimizer_s_configuration():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    found = described_model(harness.dense_model(keras.optimizers.Adam(schedule)))
    assert found["optimizer"]["learning_rate"]["class_name"] == "CosineDecay"
    text_of(found)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_dtype_policy_and_its_optimizer_are_told(policy):
    keras.config.set_dtype_policy(policy)
    found = described_model(harness.dense_model())
    assert found["dtype_policy"] == policy
    scaled = found["optimizer"]["class"] == "LossScaleOptimizer"
    assert scaled == (policy == "mixed_float16")
    text_of(found)
