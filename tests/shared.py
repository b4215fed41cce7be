"""What several of pytest's workers use and one of them makes."""

import fcntl
import os


def made_once(tmp_path_factory, name, make):
    """Returns a path that the first worker to ask gives `make`, which fills it; the others wait."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker has a folder of its own in that of the run
    path, done = folder / name, folder / f"{name}.done"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(path)
            done.touch()
    return path
