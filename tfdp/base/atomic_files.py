"""The writing of files and folders that are there whole or not at all.

A file is written into a folder beside its target, brought to the disk (`fsync`) and renamed. The
folder's name begins with `.tfdp-` and says which running system wrote it. Its writer keeps a file
in it locked (`flock`), and the kernel frees the lock when the writer ends, in whatever way. So a
folder of this system whose lock is free was left by a killed process, and the next process that
writes beside it removes it.

Folders of another host, of the time before a restart, and of file systems without locks stay, since
many file systems do not report the locks of another host. They can be deleted by hand when no
process writes.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

_PREFIX = ".tfdp-"
_LOCK = "lock"


def replace_text(path: pathlib.Path, text: str) -> None:
    """Replaces the file at once: a reader sees the old one or the new one.

    Raises:
      OSError: The file cannot be written; then nothing has changed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_text(pathlib.Path(folder, "a.json"), "{}")
    ...     os.listdir(folder)
    ['a.json']
    """
    with replacing(path) as new:
        pathlib.Path(new).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields a path to write to, then puts the file or folder written there in the place of `path`.

    A single file, and a folder where none stands, takes its place at once. Files that are written
    beside the yielded path go beside `path`, as shards do. Of several files that replace others,
    those that are not `.h5` are removed first and come last: a kill in that instant leaves a set
    that does not load, not a mixed one. Other files in a folder stay there.

    A link is followed, the permissions of a replaced file are kept, and its owner is kept as far as
    this process may (hard links and access lists are not). A path that is neither file nor folder
    (`/dev/stdout`) is written to directly.

    Raises:
      OSError: The path cannot be written; then nothing has changed. The folder of `path` must
        exist, and files may be made in it.

    Cost: an `fsync` of each file and of each folder.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.txt")
    ...     with replacing(path) as new:
    ...         _ = pathlib.Path(new).write_text("new")
    ...         path.exists()
    ...     path.read_text()
    False
    'new'
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        yield os.fspath(path)
        return
    parent, name = os.path.split(os.path.realpath(path))
    with temporary_folder(parent) as folder:
        written = os.path.join(folder, "new")
        os.mkdir(written)
        yield os.path.join(written, name)
        _put_in_place(written, parent)


@contextlib.contextmanager
def temporary_folder(parent: str | None = None) -> Iterator[str]:
    """Yields a new folder in `parent` that nobody else may read; it is removed at the end.

    Folders that killed processes of the same user and system left in `parent` are removed.

    Args:
      parent: A folder; None means the system's folder for temporary files.

    Raises:
      OSError: The folder cannot be made.

    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with temporary_folder(parent) as folder:
    ...         os.path.dirname(folder) == parent
    ...     os.listdir(parent)
    True
    []
    """
    parent = parent or tempfile.gettempdir()
    _remove_leftovers(parent)
    folder, lock = _made(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made(parent: str) -> tuple[str, int]:
    """Makes a folder; returns its path and the descriptor whose lock says that it is in use."""
    while True:
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{_system()}-", dir=parent)
        # Before it is locked, another process may take it for a leftover and remove it.
        with contextlib.suppress(FileNotFoundError):
            lock = _open_lock(folder)
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def _open_lock(folder: str) -> int:
    return os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


@functools.cache
def _system() -> str:
    """Returns a name that no other system has, nor this one after a restart."""
    try:
        name = pathlib.Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return "unknown"
    return hashlib.sha256(name).hexdigest()[:16]


def _remove_leftovers(parent: str) -> None:
    system = _system()
    if system == "unknown":
        return
    with os.scandir(parent) as entries:
        found = [entry for entry in entries if entry.name.startswith(f"{_PREFIX}{system}-")]
    for entry in found:
        # Skips a folder that another process has removed, that is another user's, or that is in
        # use.
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if not entry.is_dir(follow_symlinks=False) or status.st_uid != os.geteuid():
                continue
            lock = _open_lock(entry.path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(lock)


def _put_in_place(written: str, parent: str) -> None:
    for folder, _, names in os.walk(written):
        for name in names:
            _sync(os.path.join(folder, name))
        _sync_folder(folder)
    moves = [*_moves(written, parent)]
    for new, old in moves:
        if os.path.isfile(old):
            _own_as(old, new)
            shutil.copymode(old, new)
            if len(moves) > 1 and not old.endswith(".h5"):
                os.unlink(old)
    for new, old in moves:
        os.replace(new, old)
    for folder in {os.path.dirname(old) for _, old in moves}:
        _sync_folder(folder)


def _moves(written: str, parent: str) -> Iterator[tuple[str, str]]:
    """Yields (new, old) paths to rename; files through which others are found come last."""
    with os.scandir(written) as entries:
        ordered = sorted(entries, key=lambda e: (e.is_file(), not e.name.endswith(".h5"), e.name))
    for entry in ordered:
        old = os.path.join(parent, entry.name)
        if entry.is_dir() and os.path.isdir(old):
            yield from _moves(entry.path, old)
        else:
            yield entry.path, old


def _own_as(old: str, new: str) -> None:
    status = os.stat(old)
    for ids in ((-1, status.st_gid), (status.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.chown(new, *ids)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: str) -> None:
    # Some file systems cannot sync folders; their files are on the disk by now.
    with contextlib.suppress(OSError):
        _sync(path)
