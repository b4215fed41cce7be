"""The newest good checkpoint is found, and why newer ones are not."""

import meeting
import ml_dtypes
import numpy as np
import pytest

from tfdp.callbacks.checkpoint import archive, folder
from tfdp.communication.replicas import OneProcess

ARRAYS = {
    "weight-0": np.arange(6, dtype="float32").reshape(2, 3),
    "weight-1": np.array(7, "int64"),
    "empty": np.zeros((0, 4), "float16"),
    "half": np.array([1.5, -2], ml_dtypes.bfloat16),
    "flags": np.array([True, False]),
}


def test_what_is_written_is_read(tmp_path):
    path = folder.path_of(tmp_path, 12)
    archive.write(path, {"step": 12, "loss": float("nan")}, ARRAYS.items())
    manifest, arrays = archive.read(path)
    assert manifest["step"] == 12
    assert np.isnan(manifest["loss"])
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def read_whole(path):
    manifest, arrays = archive.read(path)
    found = dict(arrays)
    arrays.close()
    return manifest, found


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path):
    path = folder.path_of(tmp_path, 1)
    archive.write(path, {"step": 1}, ARRAYS.items())
    whole = path.read_bytes()
    step, right = read_whole(path)
    rng = np.random.default_rng(0)
    for at in rng.integers(len(whole), size=200):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            manifest, arrays = read_whole(path)
        except archive.DamagedCheckpointError:
            continue
        # What no part depends on, such as a date.
        assert manifest == step
        for name in arrays:
            np.testing.assert_array_equal(arrays[name], right[name])
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(archive.DamagedCheckpointError):
            archive.read(path)


@pytest.mark.parametrize("damage", [b"", b"weights", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(damage, tmp_path):
    for step in (9, 10, 100):
        archive.write(folder.path_of(tmp_path, step), {"step": step}, ARRAYS.items())
    (tmp_path / "step-5.checkpoint.txt").write_text("of somebody else")
    folder.path_of(tmp_path, 100).write_bytes(damage)
    found = folder.newest_good(tmp_path)
    assert (found.path.name, found.manifest["step"]) == ("step-00000010.checkpoint", 10)
    assert dict(found.arrays).keys() == ARRAYS.keys()
    assert [text.split(":")[0] for text in found.passed_over] == ["step-00000100.checkpoint"]


def test_another_format_is_no_good_one(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "FORMAT", 9)
    archive.write(folder.path_of(tmp_path, 1), {}, [])
    monkeypatch.undo()
    found = folder.newest_good(tmp_path)
    path, (reason,) = found.path, found.passed_over
    assert path is None
    assert "it is of format 9, and this tfdp reads 1" in reason


class Rank(OneProcess):
    """One of several processes, which counts the bytes that it sends."""

    def __init__(self, board):
        super().__init__()
        self.rank, self.world_size, self._board = board.rank, board.world_size, board
        self.sent = []

    def from_first(self, subject, value=None, payload=b""):
        self.sent.append(len(payload))
        return self._board.from_first(subject, value, payload)

    def all_gather(self, subject, value=None, payload=b""):
        return self._board.all_gather(subject, value, payload)


def test_rank_0_alone_reads_and_all_get_one_array_after_the_other(tmp_path):
    archive.write(folder.path_of(tmp_path, 3), {"step": 3}, ARRAYS.items())

    def act(board):
        rank = Rank(board)
        own = tmp_path if rank.rank == 0 else tmp_path / "of nobody"
        path, manifest, arrays = folder.newest_good_of_first(own, rank)
        found = {name: arrays[name] for name in ("half", "weight-0", "half")}
        arrays.close()
        return rank.sent, path.name, manifest, found, arrays.stand_ins

    with meeting.boards(3) as boards:
        everywhere = meeting.on_all(*(lambda b=b: act(b) for b in boards))
    for rank, (sent, name, manifest, found, stand_ins) in enumerate(everywhere):
        assert (name, manifest["step"]) == ("step-00000003.checkpoint", 3)
        assert sent == ([0, 4, 24, 4] if rank == 0 else [0, 0, 0, 0])
        for key, array in found.items():
            assert array.dtype == ARRAYS[key].dtype
            np.testing.assert_array_equal(array, ARRAYS[key])
        assert {key: (one.shape, one.dtype) for key, one in stand_ins.items()} == {
            key: (one.shape, one.dtype) for key, one in ARRAYS.items()
        }


def test_all_ranks_learn_that_there_is_no_checkpoint(tmp_path):
    with meeting.boards(2) as boards:
        found = meeting.on_all(
            *(lambda b=b: [folder.newest_good_of_first(tmp_path, Rank(b))] for b in boards)
        )
    assert found == [[None], [None]]


def test_no_folder_holds_no_checkpoint(tmp_path):
    assert folder.newest_good(tmp_path / "none") == folder.Found()


def test_the_newest_stay(tmp_path):
    for step in (1, 2, 30, 4):
        archive.write(folder.path_of(tmp_path, step), {}, [])
    folder.remove_old(tmp_path, keep=2, newest=folder.path_of(tmp_path, 4))
    assert [path.name for path in folder.newest_first(tmp_path)] == [
        "step-00000004.checkpoint",
        "step-00000002.checkpoint",
    ]
    # From that no training has gone on.
    assert (tmp_path / "step-00000030.checkpoint.damaged").exists()
