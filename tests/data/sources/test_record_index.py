"""The index of a record file says what its headers say, and nothing about another file."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from data.sources.record_files import flip, payloads, write

from tfdp.data.sources import record_index
from tfdp.data.sources.record_index import build_index, index_path, load_index
from tfdp.data.sources.record_scan import scan
from tfdp.errors import RecordIndexError


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.tfrecord", payloads(10))


def test_it_holds_what_a_scan_finds(tmp_path):
    written = [bytes(length) for length in (0, 1, 20000, 16384, 5, 70000)]
    path = write(tmp_path / "a", written)
    build_index(path)
    loaded, scanned = load_index(path), scan(path)
    for name in ("offsets", "lengths", "checksums"):
        assert np.array_equal(getattr(loaded, name), getattr(scanned, name))
        assert getattr(loaded, name).dtype == getattr(scanned, name).dtype
    assert loaded.file_bytes == os.path.getsize(path)
    assert loaded.corrupt.tolist() == [] and scanned.corrupt is None


def test_it_records_what_is_corrupt_and_where_the_file_ends_to_be_readable(path):
    flip(path, 3 * 56 + 20)
    os.truncate(path, 9 * 56 + 30)
    build_index(path)
    loaded = load_index(path)
    assert loaded.corrupt.tolist() == [3]
    assert loaded.damage.offset == 9 * 56 and "535" not in loaded.damage.reason
    assert len(loaded) == 9


def test_there_need_not_be_one(path):
    assert load_index(path) is None


def test_a_file_without_records_has_one(tmp_path):
    path = write(tmp_path / "a", [])
    build_index(path)
    assert len(load_index(path)) == 0


def test_a_copy_of_both_files_fits(path, tmp_path):
    build_index(path)
    for name in (path, index_path(path)):
        shutil.copyfile(name, name.replace("a.tfrecord", "b.tfrecord"))
    assert len(load_index(path.replace("a.tfrecord", "b.tfrecord"))) == 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: write(path, payloads(11)), "of 560 bytes, and the file has 616"),
        (lambda path: write(path, payloads(10, seed=1)), "record 0 of the file is another"),
        (
            lambda path: write(path, [*payloads(9), payloads(1, seed=1)[0]]),
            "record 9 of the file is another",
        ),
        (
            lambda path: pathlib.Path(index_path(path)).write_bytes(b"something else\n"),
            "not an index of tfdp",
        ),
        (lambda path: pathlib.Path(index_path(path)).write_bytes(b""), "not an index of tfdp"),
    ],
)
def test_one_that_does_not_fit_is_refused(path, change, reason):
    build_index(path)
    change(path)
    with pytest.raises(RecordIndexError, match=reason) as caught:
        load_index(path)
    assert f"`tfdp data index --force {path}`" in str(caught.value)


def test_one_of_a_newer_version_is_refused(path, monkeypatch):
    monkeypatch.setattr(record_index, "_VERSION", 2)
    build_index(path)
    monkeypatch.undo()
    with pytest.raises(RecordIndexError, match=r"version 2 .* reads up to 1\. Update tfdp"):
        load_index(path)


def test_a_flipped_bit_or_a_missing_byte_of_it_is_found(tmp_path):
    path = write(tmp_path / "a", payloads(2))
    build_index(path)
    index = pathlib.Path(index_path(path))
    whole = index.read_bytes()
    for byte in range(len(whole)):
        for changed in (
            whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :],
            whole[:byte],
        ):
            index.write_bytes(changed)
            with pytest.raises(RecordIndexError):
                load_index(path)


def test_one_that_cannot_be_written_leaves_the_old_one_and_no_other_file(path, monkeypatch):
    build_index(path)
    before = pathlib.Path(index_path(path)).read_bytes()

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr(record_index.os, "fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        build_index(path)
    assert pathlib.Path(index_path(path)).read_bytes() == before
    assert len(os.listdir(os.path.dirname(path))) == 2


def test_who_may_read_the_records_may_read_it(path):
    os.chmod(path, 0o644)
    build_index(path)
    assert os.stat(index_path(path)).st_mode & 0o777 == 0o644


def test_long_payloads_are_stepped_over(tmp_path, monkeypatch):
    path = write(tmp_path / "a", payloads(20, 100_000))
    read = []
    pread = os.pread

    def counted(*arguments):
        content = pread(*arguments)
        read.append(len(content))
        return content

    monkeypatch.setattr(os, "pread", counted)
    assert len(scan(path)) == 20
    assert sum(read) <= 20 * 16 + 12


def test_small_records_are_scanned_by_the_megabyte(tmp_path, monkeypatch):
    path = write(tmp_path / "a", [bytes(400)] * 6_000)
    reads, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *given: reads.append(given) or pread(*given))
    assert len(scan(path)) == 6_000
    assert len(reads) <= 3 + 6_000 * 416 / 2**20  # not 6,000


def test_it_is_written_without_tensorflow(path):
    program = (
        "import sys; from tfdp.data.sources.record_index import build_index; "
        f"build_index({path!r}); assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
