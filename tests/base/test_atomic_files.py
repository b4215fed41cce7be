"""Files and folders that are replaced whole, and what killed processes leave of them."""

import os
import signal

import pytest

from tfdp.base import atomic_files
from tfdp.base.atomic_files import replace_text, replacing, temporary_folder


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "f.json"
    path.write_text("old")
    replace_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match=r"absent"):
        replace_text(tmp_path / "absent" / "f.json", "new")


def test_what_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "f.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "\udcff")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_its_name_and_its_name_at_the_end(tmp_path, monkeypatch):
    done = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor):
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def rename(old, new):
        done.append("renamed")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    replace_text(tmp_path / "f.json", "new")
    assert done == ["f.json", "new", "renamed", tmp_path.name]


def test_links_and_permissions_stay(tmp_path):
    path, link = tmp_path / "f.json", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path)
    replace_text(link, "new")
    assert link.is_symlink() and path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_file_is_written_as_it_is(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    replace_text(path, "new")
    assert os.read(reader, 9) == b"new"
    os.close(reader)
    assert path.is_fifo()


def write_a_set(path, text):
    with replacing(path) as new:
        for name in (new, new.replace(".json", "_0.h5"), new.replace(".json", "_1.h5")):
            with open(name, "w") as file:
                file.write(text)


def test_a_set_of_files_is_never_mixed(tmp_path, monkeypatch):
    path = tmp_path / "set.json"
    write_a_set(path, "old")
    replace, seen = os.replace, []

    def rename(old, new):
        seen.append({entry.name: entry.read_text() for entry in tmp_path.glob("set*")})
        replace(old, new)

    monkeypatch.setattr(os, "replace", rename)
    write_a_set(path, "new")
    assert len(seen) == 3
    assert not any("set.json" in state for state in seen)
    assert {entry.read_text() for entry in tmp_path.glob("set*")} == {"new"}


def test_a_folder_takes_its_place_at_once_and_keeps_what_else_it_holds(tmp_path):
    path = tmp_path / "folder"

    def write(text):
        with replacing(path) as new:
            os.makedirs(f"{new}/inner")
            for name in ("config.json", "inner/a", "weights.h5"):
                with open(f"{new}/{name}", "w") as file:
                    file.write(text)
            assert not path.exists() or text == "new"

    write("old")
    (path / "inner" / "mine").write_text("mine")
    write("new")
    found = {entry.relative_to(path).as_posix(): entry for entry in path.rglob("*")}
    assert sorted(found) == ["config.json", "inner", "inner/a", "inner/mine", "weights.h5"]
    assert found["inner/mine"].read_text() == "mine"
    assert {found[name].read_text() for name in ("config.json", "inner/a", "weights.h5")} == {"new"}


def test_the_next_to_write_removes_what_a_killed_process_left_and_nothing_else(tmp_path):
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            with temporary_folder(tmp_path) as left:
                os.write(sender, os.path.basename(left).encode())
                signal.pause()
        finally:
            os._exit(1)
    left = os.read(receiver, 99).decode()
    with temporary_folder(tmp_path) as own:
        assert {left, os.path.basename(own)} == set(os.listdir(tmp_path))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        replace_text(tmp_path / "f.json", "new")
        assert {"f.json", os.path.basename(own)} == set(os.listdir(tmp_path))
    assert os.listdir(tmp_path) == ["f.json"]
    os.close(receiver)
    os.close(sender)


def test_a_folder_that_is_taken_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    opened, removed = atomic_files._open_lock, []

    def too_late(folder):
        lock = opened(folder)
        if not removed:
            removed.append(folder)
            atomic_files._remove_leftovers(tmp_path)
        return lock

    monkeypatch.setattr(atomic_files, "_open_lock", too_late)
    with temporary_folder(tmp_path) as folder:
        assert removed and removed != [folder]
        assert os.listdir(tmp_path) == [os.path.basename(folder)]


def test_what_another_system_has_made_stays(tmp_path, monkeypatch):
    for system in ("another", atomic_files._system()):
        left = tmp_path / f".tfdp-{system}-left"
        left.mkdir()
        replace_text(tmp_path / "f.json", "new")
        assert left.exists() == (system == "another")


def test_without_locks_what_others_left_stays(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(38, "Function not implemented")

    with temporary_folder(tmp_path) as left:
        monkeypatch.setattr(atomic_files.fcntl, "flock", flock)
        replace_text(tmp_path / "f.json", "new")
        assert set(os.listdir(tmp_path)) == {"f.json", os.path.basename(left)}
