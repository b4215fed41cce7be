"""The demo's second run in several processes: a cluster, whose result is read from a file."""

import contextlib
import pathlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator

from tfdp.base.atomic_files import temporary_folder
from tfdp.cluster import launch
from tfdp.tools.demo.demo_options import DemoOptions
from tfdp.tools.demo.train import TrainingRun

# The files in the folder that the ranks are told of.
OPTIONS, STEPS, RESULT = "options.pickle", "steps", "result.pickle"

_LOOK_EVERY_SECONDS = 0.2


class RanksFailedError(RuntimeError):
    """An error where a rank failed; the launcher has printed which one, and its last error.

    Args:
      exit_code: The launcher's exit code, not 0.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the launcher ended with exit code {exit_code}")
        self.exit_code = exit_code


def train_in_processes(
    options: DemoOptions, on_steps: Callable[[int], None] = lambda steps: None
) -> TrainingRun:
    """Trains as :func:`tfdp.tools.demo.train.train` does, in `options.processes` processes.

    1. `tfdp.cluster.launch` starts :mod:`tfdp.tools.demo.demo_rank` in each, with a `TF_CONFIG` of
    loopback addresses.
    2. Rank 0 appends a byte to a file after each step, and leaves its :class:`TrainingRun` at the
       end.
    3. This process reads both.

    Args:
      options: The options that say what to train, and on how many replicas and processes.
      on_steps: Called repeatedly, in another thread, with the number of steps done.

    Raises:
      RanksFailedError: A rank failed, or the run was interrupted.
    """
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        (folder / OPTIONS).write_bytes(pickle.dumps(options))
        with _watching(folder / STEPS, on_steps):
            code = launch.run(
                launch.RunOptions(
                    processes=options.processes,
                    command=rank_command(folder),
                    devices_per_process=options.replicas_per_process,
                )
            )
        if code != 0:
            raise RanksFailedError(code)
        return pickle.loads((folder / RESULT).read_bytes())


def rank_command(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the words that start a rank."""
    return (sys.executable, "-m", "tfdp.tools.demo.demo_rank", str(folder))


@contextlib.contextmanager
def _watching(path: pathlib.Path, on_steps: Callable[[int], None]) -> Iterator[None]:
    """Calls `on_steps` with the file's size repeatedly until the block ends, and once more then."""
    stop = threading.Event()

    def look() -> None:
        with contextlib.suppress(FileNotFoundError):
            on_steps(path.stat().st_size)

    def watch() -> None:
        while not stop.wait(_LOOK_EVERY_SECONDS):
            look()

    thread = threading.Thread(target=watch, name="demo-steps", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()
