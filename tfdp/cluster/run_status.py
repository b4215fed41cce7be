"""The files by which a rank tells `tfdp run` that its strategy was made, how far it came, its end.

`tfdp run` gives all ranks of an attempt one folder in the environment variable `TFDP_RUN_STATUS`,
and each rank's strategy leaves empty files there. A rank that leaves no file has trained alone, or
the others wait for it in vain. The launcher then says so. A training that goes on from checkpoints
keeps the number of its step in a file, which outlives a kill. A rank that is alone tells the
launcher that it lives: no other rank would notice its silence. A rank that ends by an error, or
since another one is lost, tells of it; one that is killed tells nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

STATUS_VARIABLE = "TFDP_RUN_STATUS"
_BEGUN, _MADE, _STEPS, _CAN_STOP = "begun", "made", "steps", "can-stop"
_LOG_DIR, _ALIVE, _END = "log-dir", "alive", "end"
_STEPS_FORMAT = struct.Struct("=qqq")  # the first, the last, and how many points were reached

_BEAT_SECONDS = 1.0

_beating = False  # whether a thread of this process tells that it lives
_ending = threading.Lock()  # of the threads that tell of the end


def mark_strategy_begun(environ: Mapping[str, str] = os.environ) -> None:
    """Marks that this rank makes a strategy, and waits for the others to do so.

    From then on an error that nothing catches is told as this rank's end. Does nothing outside
    `tfdp run`. The rank is the task's index in `TF_CONFIG`.
    """
    _leave_word(environ, _BEGUN)
    _tell_uncaught(environ)


def mark_strategy_made(environ: Mapping[str, str] = os.environ) -> None:
    """Marks that this rank's strategy is made; it may be called more than once.

    Does nothing outside `tfdp run`, like `mark_strategy_begun`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 1}}'
    >>> mark_strategy_made({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> ranks_without_strategy(folder.name, range(3))
    [0, 2]
    """
    _leave_word(environ, _MADE)
    _tell_uncaught(environ)


def mark_can_stop(can: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Marks that a signal makes this rank's training keep a checkpoint and stop, or no longer does.

    Does nothing outside `tfdp run`, like `mark_strategy_begun`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 1}}'
    >>> mark_can_stop(True, {"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> can_stop(folder.name, [1]), can_stop(folder.name, [0, 1])
    (True, False)
    """
    if can:
        _leave_word(environ, _CAN_STOP)
    elif (path := _own_mark(environ, _CAN_STOP)) is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def can_stop(folder: str, ranks: Iterable[int]) -> bool:
    """Returns whether each of the ranks has said that it can stop at a checkpoint."""
    return all(_mark(folder, rank, _CAN_STOP).exists() for rank in ranks)


def ranks_without_strategy(folder: str, ranks: Iterable[int]) -> list[int]:
    """Returns those of the ranks that made no strategy."""
    return [rank for rank in ranks if not _mark(folder, rank, _MADE).exists()]


def ranks_that_wait(folder: str, ranks: Iterable[int]) -> list[int]:
    """Returns those that wait in making their first strategy, which needs all ranks to come."""
    without = ranks_without_strategy(folder, ranks)
    return [rank for rank in without if _mark(folder, rank, _BEGUN).exists()]


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

    Does nothing outside `tfdp run`, like `mark_strategy_begun`. It may be called more than once.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 0}}'
    >>> tell_alive({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> last_sign(folder.name, 0) is None, last_sign(folder.name, 1)
    (False, None)
    """
    global _beating
    path = _own_mark(environ, _ALIVE)
    if path is None or _beating:
        return
    with contextlib.suppress(OSError):
        path.touch()
        _beating = True
        threading.Thread(target=_beat, args=(path,), name="tfdp-alive", daemon=True).start()


def _beat(path: pathlib.Path) -> None:
    global _beating
    with contextlib.suppress(OSError):  # the launcher is gone
        while True:
            time.sleep(_BEAT_SECONDS)
            os.utime(path)
    _beating = False


def last_sign(folder: str, rank: int) -> int | None:
    """Returns a number that changes while a rank tells that it lives; None if it never has."""
    try:
        return _mark(folder, rank, _ALIVE).stat().st_mtime_ns
    except OSError:
        return None


def mark_log_dir(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> None:
    """Tells where this rank's Telemetry writes, for the launcher to write beside it.

    Does nothing outside `tfdp run`, like `mark_strategy_begun`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 0}}'
    >>> mark_log_dir("/logs", {"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> log_dir(folder.name, range(2)), log_dir(folder.name, range(1, 2))
    ('/logs', None)
    """
    mark = _own_mark(environ, _LOG_DIR)
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.write_text(os.path.abspath(path), encoding="utf-8")


def log_dir(folder: str, ranks: Iterable[int]) -> str | None:
    """Returns where Telemetry writes, if one of the ranks has told."""
    for rank in ranks:
        with contextlib.suppress(OSError, ValueError):
            return _mark(folder, rank, _LOG_DIR).read_text(encoding="utf-8")
    return None


@dataclasses.dataclass(frozen=True)
class RankEnd:
    """The cause of a rank's end, as the rank has told it.

    Attributes:
      error: The traceback of the error that nothing caught; empty if there was none.
      lost_rank: The rank without which this one cannot go on; None: its end has another cause.
    """

    error: str = ""
    lost_rank: int | None = None


def tell_end(
    error: str = "", lost_rank: int | None = None, environ: Mapping[str, str] = os.environ
) -> None:
    """Tells why this rank is about to end. What is lost after an error of its own is no cause.

    Does nothing outside `tfdp run`, like `mark_strategy_begun`. The file appears at once.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 1}}'
    >>> environ = {"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task}
    >>> tell_end(lost_rank=3, environ=environ)
    >>> tell_end("RankLostError: ...", environ=environ)
    >>> told_end(folder.name, 1)
    RankEnd(error='RankLostError: ...', lost_rank=3)
    >>> told_end(folder.name, 0)
    RankEnd(error='', lost_rank=None)
    """
    path = _own_mark(environ, _END)
    if path is None:
        return
    with _ending, contextlib.suppress(OSError):  # the launcher is gone
        before = _read_end(path)
        if before.error:
            return
        lost = lost_rank if before.lost_rank is None else before.lost_rank
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps({"error": error, "lost_rank": lost}), encoding="utf-8")
        new.replace(path)


def told_end(folder: str, rank: int) -> RankEnd:
    """Returns what a rank has told of its end; nothing of one that was killed, or knows no tfdp."""
    return _read_end(_mark(folder, rank, _END))


def _read_end(path: pathlib.Path) -> RankEnd:
    try:
        return RankEnd(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return RankEnd()


def _tell_uncaught(environ: Mapping[str, str]) -> None:
    if environ is os.environ and _own_mark(environ, _END) is not None:
        hooks.put(sys, "excepthook", _uncaught)


def _uncaught(original: Callable[..., Any], kind: Any, value: Any, trace: Any) -> None:
    """Tells the launcher of the error that ends this rank."""
    tell_end("".join(traceback.format_exception(kind, value, trace)))
    original(kind, value, trace)


def _leave_word(environ: Mapping[str, str], word: str) -> None:
    path = _own_mark(environ, word)
    if path is not None:
        with contextlib.suppress(OSError):  # the launcher is gone
            path.touch()


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
