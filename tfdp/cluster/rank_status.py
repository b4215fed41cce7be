"""The files by which a rank tells `tfdp run` how it is, how far it came, and why it ends.

`tfdp run` gives all ranks of an attempt one folder in the environment variable `TFDP_RUN_STATUS`.
Each rank has a status file there, which appears and changes at once. A rank that tells of no
strategy has trained alone, or the others wait for it in vain. The launcher then says so. A rank
that ends by an error, or since another one is lost, tells of it; one that is killed tells nothing.
A training that goes on from checkpoints keeps the number of its step in a file, which outlives a
kill. A rank that is alone tells the launcher that it lives: no other rank would notice its silence.
"""

import contextlib
import dataclasses
import fcntl
import json
import mmap
import os
import pathlib
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfdp.base import hooks
from tfdp.errors import RankLostError

STATUS_VARIABLE = "TFDP_RUN_STATUS"
_STATUS, _STEPS, _ALIVE = "status", "steps", "alive"
_STEPS_FORMAT = struct.Struct("=qqq")  # the first, the last, and how many points were reached

_CAUSES = ("error", "lost_rank")  # of a rank's end: the first one that is told counts

_BEAT_SECONDS = 1.0
_BEATING = "tfdp-alive"  # the thread that tells that this process lives

# The process that has told of its status. Those that it forks have its hook for errors, and tell
# nothing.
_teller: int | None = None


@dataclasses.dataclass(frozen=True)
class RankStatus:
    """What a rank has told of itself.

    Attributes:
      begun: Whether it makes a strategy, and waits for the others to do so.
      made: Whether its strategy is made.
      apart: Whether it trains apart from the others, which go on without it.
      can_stop: Whether a signal makes its training keep a checkpoint and stop.
      log_dir: The folder to which its Telemetry writes.
      error: The traceback of the error that ends it, since nothing caught that.
      lost_rank: The rank without which it cannot go on.
    """

    begun: bool = False
    made: bool = False
    apart: bool = False
    can_stop: bool = False
    log_dir: str | None = None
    error: str | None = None
    lost_rank: int | None = None


def tell(environ: Mapping[str, str] = os.environ, **changes: bool | str | int | None) -> None:
    """Changes fields of this rank's :class:`RankStatus`.

    Of its end the cause counts: the first error, and a rank that was lost before that. From the
    first call on an error that nothing catches is told of, too. Does nothing outside `tfdp run`,
    nor in a process that a rank has forked. The rank is the task's index in `TF_CONFIG`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 1}}'
    >>> tell({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task}, made=True)
    >>> told(folder.name, 1).made, ranks_without_strategy(folder.name, range(3))
    (True, [0, 2])
    """
    path = _own_mark(environ, _STATUS)
    if path is None or _was_forked(environ):
        return
    if environ is os.environ:
        hooks.put(sys, "excepthook", _uncaught)
    try:
        # Of all threads and processes of the rank: what it has started is given its environment.
        with open(path.with_name(f"{path.name}.lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                _change(path, changes)
            finally:  # closing it would leave the lock with a process that was forked meanwhile
                fcntl.flock(lock, fcntl.LOCK_UN)
    except FileNotFoundError:
        pass  # the launcher is gone
    except OSError as error:
        print(
            f"tfdp: this rank must tell `tfdp run` of {', '.join(changes)} in {path}, and cannot: "
            f"{error}. Make room there; what `tfdp run` says of the end may be wrong.",
            file=sys.stderr,
        )


def _was_forked(environ: Mapping[str, str]) -> bool:
    """Returns whether another process, which forked this one, tells; else this one does."""
    global _teller
    if environ is not os.environ:
        return False
    _teller = _teller or os.getpid()
    return _teller != os.getpid()


def _change(path: pathlib.Path, changes: Mapping[str, Any]) -> None:
    before = _read(path)
    settled = {name for name in _CAUSES if before.error or getattr(before, name) is not None}
    kept = {name: value for name, value in changes.items() if name not in settled}
    new = path.with_name(f"{path.name}.new")
    status = dataclasses.asdict(dataclasses.replace(before, **kept))
    new.write_text(json.dumps(status), encoding="utf-8")
    new.replace(path)


def told(folder: str, rank: int) -> RankStatus:
    """Returns what a rank has told so far."""
    return _read(_mark(folder, rank, _STATUS))


def forget(folder: str, rank: int) -> None:
    """Takes back what a rank has told that starts again."""
    for kind in (_STATUS, _STEPS, _ALIVE):
        _mark(folder, rank, kind).unlink(missing_ok=True)


def ranks_without_strategy(folder: str, ranks: Iterable[int]) -> list[int]:
    """Returns those of the ranks that made no strategy."""
    return [rank for rank in ranks if not told(folder, rank).made]


def _read(path: pathlib.Path) -> RankStatus:
    try:
        return RankStatus(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return RankStatus()


def _uncaught(original: Callable[..., Any], kind: Any, value: Any, trace: Any) -> None:
    """Tells the launcher of the error that ends this rank; a process that it forked is none."""
    if os.getpid() == _teller:
        error = "".join(traceback.format_exception(kind, value, trace))
        tell(error=error, lost_rank=value.rank if isinstance(value, RankLostError) else None)
    original(kind, value, trace)


class StepMark:
    """The numbers of the steps that this rank has begun, for the launcher to read after its end.

    Does nothing outside `tfdp run`. A write costs less than a microsecond.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 1}}'
    >>> mark = StepMark({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> mark.write(12)
    >>> mark.write(13)
    >>> steps_begun(folder.name, range(2)), steps_begun(folder.name, range(1))
    ((12, 13), None)
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._memory: mmap.mmap | None = None
        self._first = self._last = self._points = 0
        path = _own_mark(environ, _STEPS)
        if path is not None:
            with contextlib.suppress(OSError), open(path, "w+b") as file:
                file.write(_STEPS_FORMAT.pack(0, 0, 0))
                file.flush()
                self._memory = mmap.mmap(file.fileno(), _STEPS_FORMAT.size)

    def write(self, step: int) -> None:
        """Says that a step begins; the first of a training is 1."""
        self._first, self._last = self._first or step, step
        self.reach()

    def reach(self) -> None:
        """Says that the training goes on, in a step or an evaluation."""
        self._points += 1
        self._pack()

    def close(self) -> None:
        """Says that no step is to come: what follows takes what time it takes."""
        self._points = 0
        self._pack()

    def _pack(self) -> None:
        if self._memory is not None:
            _STEPS_FORMAT.pack_into(self._memory, 0, self._first, self._last, self._points)


def steps_begun(folder: str, ranks: Iterable[int]) -> tuple[int, int] | None:
    """Returns the first and the last step that one of the ranks has begun; None if none told."""
    told = [steps for rank in ranks if (steps := _steps(folder, rank))[0]]
    return (min(first for first, *_ in told), max(last for _, last, _ in told)) if told else None


def points_reached(folder: str, rank: int) -> int:
    """Returns how many points a rank's training has reached; 0 while no other is to come.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 1}}'
    >>> mark = StepMark({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> mark.write(12)
    >>> mark.reach()
    >>> points_reached(folder.name, 1), points_reached(folder.name, 0)
    (2, 0)
    >>> mark.close()
    >>> points_reached(folder.name, 1)
    0
    """
    return _steps(folder, rank)[2]


def _steps(folder: str, rank: int) -> tuple[int, int, int]:
    try:
        first, last, points = _STEPS_FORMAT.unpack(_mark(folder, rank, _STEPS).read_bytes())
    except (OSError, struct.error):
        return 0, 0, 0
    return first, last, points


def tell_alive(environ: Mapping[str, str] = os.environ) -> None:
    """Tells the launcher once a second that this process lives, from now to its end.

    Does nothing outside `tfdp run`, like `tell`. It may be called more than once.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 0}}'
    >>> tell_alive({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> last_sign(folder.name, 0) is None, last_sign(folder.name, 1)
    (False, None)
    """
    path = _own_mark(environ, _ALIVE)
    if path is None or _was_forked(environ):
        return
    if any(thread.name == _BEATING for thread in threading.enumerate()):
        return
    with contextlib.suppress(OSError):
        path.touch()
        threading.Thread(target=_beat, args=(path,), name=_BEATING, daemon=True).start()


def _beat(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone
        while True:
            time.sleep(_BEAT_SECONDS)
            os.utime(path)


def last_sign(folder: str, rank: int) -> int | None:
    """Returns a number that changes while a rank tells that it lives; None if it never has."""
    try:
        return _mark(folder, rank, _ALIVE).stat().st_mtime_ns
    except OSError:
        return None


def _own_mark(environ: Mapping[str, str], word: str) -> pathlib.Path | None:
    folder = environ.get(STATUS_VARIABLE)
    if not folder:
        return None
    try:
        rank = int(json.loads(environ.get("TF_CONFIG", ""))["task"]["index"])
    except (KeyError, TypeError, ValueError):
        return None  # a script that changed TF_CONFIG is no rank of this run
    return _mark(folder, rank, word)


def _mark(folder: str, rank: int, word: str) -> pathlib.Path:
    return pathlib.Path(folder, f"rank-{rank}-{word}")
