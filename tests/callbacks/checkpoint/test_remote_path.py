"""Checkpoints of remote folders: TensorFlow's file system in memory stands for others."""

import numpy as np
import pytest

from tfdp.callbacks.checkpoint import archive, folder, remote_path
from tfdp.callbacks.checkpoint.checkpoint_writer import CheckpointWriter
from tfdp.callbacks.checkpoint.remote_path import as_path

ARRAYS = {"weight-0": np.arange(1000, dtype="float32"), "flag": np.array(True)}


@pytest.fixture
def directory(request):
    return as_path(f"ram://{request.node.name}/run")


def test_remote_checkpoints_are_written_read_and_removed(directory, monkeypatch):
    monkeypatch.setattr(remote_path, "_PART_BYTES", 64)
    assert folder.newest_good(directory) == folder.Found()
    writer = CheckpointWriter(directory, keep=2)
    for step in range(1, 5):
        writer.write(step, {"step": step}, ARRAYS.items())
    writer.wait()
    names = [path.name for path in folder.newest_first(directory)]
    assert names == ["step-00000004.checkpoint", "step-00000003.checkpoint"]
    found = folder.newest_good(directory)
    assert (str(found.path), found.manifest["step"]) == (f"{directory}/{names[0]}", 4)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_a_remote_checkpoint_without_its_end_is_passed_over(directory):
    directory.mkdir()
    for step in (1, 2):
        archive.write(folder.path_of(directory, step), {"step": step}, ARRAYS.items())
    newest = folder.path_of(directory, 2)
    whole = newest.read_bytes()
    for length in range(1, len(whole), 97):
        with newest.writing() as file:
            file.write(whole[:length])
        assert folder.newest_good(directory).manifest["step"] == 1
    with newest.writing() as file:
        file.write(whole)
    assert folder.newest_good(directory).manifest["step"] == 2


def test_an_error_within_a_write_leaves_nothing_that_counts(directory):
    directory.mkdir()
    with pytest.raises(TypeError):
        bad = {**ARRAYS, "bad": np.array([object()])}
        archive.write(folder.path_of(directory, 1), {}, bad.items())
    assert folder.newest_good(directory).path is None


def test_checkpoints_that_no_training_went_on_from_are_set_aside(directory):
    directory.mkdir()
    for step in (3, 9):
        archive.write(folder.path_of(directory, step), {}, [])
    folder.remove_old(directory, keep=1, newest=folder.path_of(directory, 3))
    assert [path.name for path in directory.iterdir()] == [
        "step-00000003.checkpoint",
        "step-00000009.checkpoint.damaged",
    ]


def test_errors_of_tensorflow_are_those_of_the_system(directory):
    for act in (directory.read_bytes, directory.unlink, lambda: list(directory.iterdir())):
        with pytest.raises(OSError, match="NotFoundError"):
            act()
    directory.unlink(missing_ok=True)
    assert not directory.is_dir()
