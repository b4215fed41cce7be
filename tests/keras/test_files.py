"""What Keras saves is there whole or not at all, and what cannot be written or read is named."""

import contextlib
import gc
import os
import random
import resource
import signal
import tempfile
import time

import h5py
import harness
import keras
import numpy as np
import pytest
from replica_counts import DEVICE

NAMES = ("model.keras", "model.weights.h5", "model.h5", "sharded.weights.json", "folder")
BACKUP = ("latest.weights.h5", "training_metadata.json")


def build(width=64):
    """Has some 20 kB."""
    model = keras.Sequential(
        [keras.Input((5,)), *(keras.layers.Dense(units) for units in (width, width, 1))]
    )
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def save(model, path):
    if path.name == "folder":
        model.save(path, zipped=False)
    elif path.suffix == ".json":
        model.save_weights(path, max_shard_size=18e3 / 2**30)
    elif path.name.endswith(".weights.h5"):
        model.save_weights(path)
    else:
        model.save(path)


def stands(path):
    """Whether there is what the rest of a save is found through."""
    return (path / "config.json" if path.name == "folder" else path).exists()


def load(model, path):
    model.load_weights(path / "model.weights.h5" if path.name == "folder" else path)
    return model.get_weights()


@pytest.fixture
def model(replicas):
    return harness.build_in_scope(build, replicas)


@contextlib.contextmanager
def limited_to(size):
    """No file grows above so many bytes: as on a full disk, an error in the midst of writing."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def killed_while_it_saves(model, folder, names, saves, seconds):
    """A copy of this process saves, and is killed so long after the beginning of the n-th save."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            for value in range(1, 250):
                for weights in model.weights:
                    weights.assign(np.full(weights.shape, value, "float32"))
                for name in names:
                    os.write(sender, b".")
                    save(model, folder / name)
        finally:
            os._exit(1)
    os.close(sender)
    with open(receiver, "rb", buffering=0) as begun:
        for _ in range(saves):
            assert begun.read(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.slow
@harness.in_one_process
@pytest.mark.skipif(DEVICE == "GPU", reason="it copies its process, in which CUDA has begun")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whoever_is_killed_while_saving_leaves_files_that_load(
    model, tmp_path, tmp_path_factory, monkeypatch
):
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    random.seed(7)
    reader = build()
    for names in [[name] for name in NAMES] + [NAMES] * 6:
        killed_while_it_saves(model, tmp_path, names, random.randint(1, 4), random.uniform(0, 0.04))
        for name in filter(lambda name: stands(tmp_path / name), NAMES):
            values = np.concatenate([array.ravel() for array in load(reader, tmp_path / name)])
            assert np.ptp(values) == 0, name
    for name in NAMES:
        save(model, tmp_path / name)
    shards = [f"sharded_{i:05}.weights.h5" for i in range(2)]
    assert sorted(os.listdir(tmp_path)) == sorted([*NAMES, *shards])
    assert not os.listdir(scratch)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_named_and_what_stood_there_stands(model, tmp_path):
    for name in NAMES:
        save(model, tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in NAMES:
        full = pytest.raises(OSError, match=rf"{name}' must be .* too large.* Free space")
        with full, limited_to(1000):
            save(model, tmp_path / name)
    gc.collect()
    assert not h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_a_folder_that_is_not_there_is_named_with_what_to_do(model, tmp_path):
    with pytest.raises(OSError, match=r"w\.weights\.h5' must be .* Make the folder '.*absent' fir"):
        model.save_weights(tmp_path / "absent" / "w.weights.h5")
    model.save(tmp_path / "made" / "model.h5")
    assert os.listdir(tmp_path) == ["made"]


@harness.in_one_process
def test_an_exported_folder_keeps_what_else_it_holds(model, tmp_path, capfd):
    folder = tmp_path / "serving"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    model.export(folder)
    assert {"notes.txt", "saved_model.pb", "variables"} <= set(os.listdir(folder))
    assert os.listdir(tmp_path) == ["serving"]
    assert f"Saved artifact at '{folder}'." in capfd.readouterr().out


@harness.in_one_process
def test_a_backup_that_is_not_whole_is_named_with_what_to_do(model, tmp_path):
    def begin(**options):
        callback = keras.callbacks.BackupAndRestore(tmp_path / "backup", **options)
        callback.set_model(model)
        callback.on_train_begin()
        return callback

    callback = begin()
    callback.on_epoch_end(1)
    weights, metadata = (tmp_path / "backup" / name for name in BACKUP)
    whole = {path: path.read_bytes() for path in (weights, metadata)}
    full = pytest.raises(OSError, match=r"latest.weights.h5' must be .* Free space")
    with full, limited_to(1000):
        callback.on_epoch_end(2)
    assert {path: path.read_bytes() for path in whole} == whole
    begin().on_epoch_end(1)
    assert sorted(weights.parent.iterdir()) == sorted(whole)
    for path, size in [(weights, 4000), (weights, 0), (metadata, 9), (metadata, 0), (metadata, -1)]:
        path.write_bytes(whole[path][:size])
        if size < 0:
            path.unlink()
        with pytest.raises(OSError, match=rf"whole, but '.*{path.name}' is not: .* delete the fol"):
            begin()
        path.write_bytes(whole[path])
    begin(double_checkpoint=True).on_epoch_end(2)
    assert model._initial_epoch == 2
    begin()
    assert model._initial_epoch == 3
    weights.write_bytes(b"")
    begin()
    assert model._initial_epoch == 2
