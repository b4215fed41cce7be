"""Checkpoints are written beside the training, and a disk that fails does not end it."""

import errno
import logging
import os

import meeting
import numpy as np

from tfdp.callbacks.checkpoint import archive, folder
from tfdp.callbacks.checkpoint.checkpoint_writer import CheckpointWriter
from tfdp.communication.collectives.meetings import bring_to_first

ARRAYS = {"weight-0": np.ones(4)}


def test_checkpoints_are_written_in_order_and_the_newest_stay(tmp_path):
    writer = CheckpointWriter(tmp_path / "new" / "folder", keep=2)
    for step in range(4):
        writer.write(step, {"step": step}, ARRAYS.items())
    writer.wait()
    left = folder.newest_first(tmp_path / "new" / "folder")
    assert [archive.read(path)[0]["step"] for path in left] == [3, 2]


def test_a_full_disk_is_said_and_the_last_good_checkpoint_stays(tmp_path, monkeypatch, caplog):
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.write(1, {"step": 1}, ARRAYS.items())
    writer.wait()

    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with caplog.at_level(logging.ERROR, "tfdp"):
        writer.write(2, {"step": 2}, ARRAYS.items())
        writer.wait()
    assert "step-00000002.checkpoint could not be written: [Errno 28]" in caplog.text
    assert "The training goes on; the last good checkpoint stays. Free space there" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.checkpoint"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    writer = CheckpointWriter(tmp_path / "file" / "folder", keep=1)
    with caplog.at_level(logging.ERROR, "tfdp"):
        writer.write(1, {}, [])
        writer.wait()
    assert "could not be written" in caplog.text


def test_lost_checkpoints_are_said_once_until_one_is_written(tmp_path, monkeypatch, caplog):
    writer = CheckpointWriter(tmp_path, keep=2)

    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for broken in (True, True, True, False, False, True, True):
        with monkeypatch.context() as patched:
            if broken:
                patched.setattr(archive, "write", fails)
            with caplog.at_level(logging.WARNING, "tfdp"):
                writer.write(len(list(tmp_path.iterdir())), {}, [])
                writer.wait()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "WARNING", "ERROR"]
    assert str(tmp_path) in caplog.records[0].message
    assert "is written, after 3 were lost" in caplog.records[1].message


def test_what_others_send_is_taken_though_it_cannot_be_written(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    arrays = ((str(number), np.ones(2)) for number in range(3))
    writer = CheckpointWriter(tmp_path / "file" / "folder", keep=1)
    writer.write(1, {}, arrays)
    writer.wait()
    assert "could not be written" in caplog.text
    assert next(arrays, None) is None


def test_a_rank_that_is_lost_while_it_sends_is_named_and_no_space_is_asked_for(tmp_path, caplog):
    with meeting.boards(3) as (first, *others):
        writer = CheckpointWriter(tmp_path, keep=1)
        parts = (("weight-0", bring_to_first(first, "a part", b"")) for _ in "1")
        writer.write(1, {}, parts)
        others[1].close("out of memory")
        writer.wait()
    assert "step-00000001.checkpoint could not be written: Rank 0: lost rank 2" in caplog.text
    assert "good checkpoint stays, and the training goes on from it when all" in caplog.text
    assert "Free space" not in caplog.text and "The training goes on" not in caplog.text


def test_what_cannot_be_sent_is_said(tmp_path, caplog):
    def broken():
        yield "weight-0", np.ones(2)
        raise OSError("the line is cut")

    writer = CheckpointWriter(tmp_path, keep=1)
    writer.send(broken())
    writer.wait()
    assert "A checkpoint's part was not sent: the line is cut" in caplog.text
