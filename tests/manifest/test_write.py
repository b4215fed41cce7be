"""The whole manifest: what is in it, who writes it, how."""

import json
import subprocess
import sys

import harness
import keras
import numpy as np
import pytest

import tfdp
from tfdp.manifest import write

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
