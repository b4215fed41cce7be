"""The ranks' output: shown with the rank before each line, and kept in logs."""

import collections
import contextlib
import itertools
import os
import pathlib
import select
import threading
from collections.abc import Callable, Iterable
from typing import BinaryIO

from tfdp.cluster.launch.output_lines import LineSplitter

KEPT_LINES = 400  # of each rank's standard error, to find its last error in

_CHUNK_BYTES = 2**16
_TICK_SECONDS = 0.2


class Outlet:
    """A stream or a log that takes what it can: the job matters more than its log.

    Args:
      file: The file to write to; Python's buffer is bypassed, as it would keep what failed.
      name: The file's name, for people.

    Attributes:
      failure: The first error, usually of a full disk. Later writes are tried again.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        with contextlib.suppress(OSError):
            file.flush()
        self._file = getattr(file, "raw", file)
        self._lock = threading.Lock()
        self.name = name
        self.failure: OSError | None = None

    def write(self, data: bytes) -> bool:
        """Writes everything at one time, and returns whether that was possible.

        Raises:
          BrokenPipeError: Nobody reads the stream any more.
        """
        try:
            with self._lock:
                while data:
                    written = self._file.write(data)
                    if written is None:  # a terminal that another program made non-blocking
                        select.select([], [self._file], [])
                    data = data[written or 0 :]
                self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self.failure = self.failure or error
            return False
        return True

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            self._file.close()


class Sink:
    r"""The taker of the whole lines of all ranks, which never mixes two lines.

    Args:
      stdout, stderr: The launcher's own streams.
      on_broken: Called once when nobody reads one of the streams any more.

    >>> import io
    >>> out = io.BytesIO()
    >>> sink = Sink(out, io.BytesIO(), on_broken=lambda: None)
    >>> sink.write(sink.stdout, [b"[0] one\n", b"[0] two\n"])
    >>> out.getvalue()
    b'[0] one\n[0] two\n'
    """

    def __init__(self, stdout: BinaryIO, stderr: BinaryIO, on_broken: Callable[[], None]) -> None:
        self.stdout = Outlet(stdout, "standard output")
        self.stderr = Outlet(stderr, "standard error")
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._broken: set[Outlet] = set()
        self._told: set[Outlet] = set()
        self._to_tell = b""

    def write(self, stream: Outlet, lines: list[bytes]) -> None:
        """Writes complete lines to one of the streams, together."""
        with self._lock:
            self._tell()
            if lines and not self._write(stream, b"".join(lines)):
                self._note(stream)

    def tell_loss(self, log: Outlet) -> None:
        """Says on standard error, once, that a log could not be written."""
        with self._lock:
            self._note(log)

    def _write(self, stream: Outlet, data: bytes) -> bool:
        if stream in self._broken:
            return True
        try:
            return stream.write(data)
        except BrokenPipeError:
            if not self._broken:
                self._on_broken()
            self._broken.add(stream)
            return True

    def _note(self, outlet: Outlet) -> None:
        if outlet not in self._told:
            self._told.add(outlet)
            self._to_tell += (
                f"tfdp run: `{outlet.name}` must take what the ranks write; received "
                f"{outlet.failure}. The ranks go on, and what cannot be written is lost: "
                "make room.\n"
            ).encode(errors="backslashreplace")
            self._tell()

    def _tell(self) -> None:
        """Writes the messages that are still unsaid; on a full disk, they are tried again later."""
        if self._to_tell and self._write(self.stderr, self._to_tell):
            self._to_tell = b""


class RankStream(threading.Thread):
    """A thread that passes on one stream of one rank, until the stream ends.

    Args:
      label: The prefix of each line: the rank, or "mpiexec".
      source: The descriptor to read.
      sink: The sink that takes the lines.
      target: The stream of the sink that the lines go to.
      log: A file for the unchanged output, which the rank's streams share, or None.
      is_hidden: Tells which lines go to the log alone.
    """

    def __init__(
        self,
        label: str,
        source: int,
        sink: Sink,
        target: Outlet,
        log: Outlet | None,
        is_hidden: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        super().__init__(name=f"output of {label}", daemon=True)
        self.last_lines: collections.deque[bytes] = collections.deque(maxlen=KEPT_LINES)
        self._prefix = b"[%s] " % label.encode()
        self._source, self._sink, self._target = source, sink, target
        self._log, self._is_hidden = log, is_hidden
        self._unlogged = b""
        self._rank_is_gone = threading.Event()

    def run(self) -> None:
        """Reads until the stream ends, or until nothing more comes from a rank that is gone."""
        lines = LineSplitter()
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        while True:
            if not poll.poll(1000 * _TICK_SECONDS):
                if self._rank_is_gone.is_set():
                    break
                continue
            chunk = os.read(self._source, _CHUNK_BYTES)
            if not chunk:
                break
            self._write_log(chunk)
            self._show(list(lines.feed(chunk)))
        self._write_log(b"", end=True)
        self._show(list(lines.end()))

    def said(self) -> list[str]:
        """Returns the last lines, as far as the stream has been read."""
        return [line.decode(errors="backslashreplace") for line in self.last_lines.copy()]

    def finish(self) -> None:
        """Waits until all output of a rank that is gone is passed on."""
        self._rank_is_gone.set()
        self.join()

    def _show(self, lines: list[bytes]) -> None:
        self.last_lines.extend(lines)
        shown = [line for line in lines if not self._is_hidden(line)]
        self._sink.write(self._target, [b"%s%s\n" % (self._prefix, line) for line in shown])

    def _write_log(self, chunk: bytes, end: bool = False) -> None:
        """Writes up to the last end of a line, so that the rank's two streams do not mix."""
        if self._log is None:
            return
        data = self._unlogged + chunk
        cut = len(data) if end else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._unlogged = data[cut:]
        if cut and not self._log.write(data[:cut]):
            self._sink.tell_loss(self._log)


def log_path(folder: pathlib.Path, rank: int) -> pathlib.Path:
    """Returns the path of the log of a rank."""
    return folder / f"rank-{rank}.log"


def open_logs(folder: pathlib.Path, ranks: Iterable[int]) -> dict[int, Outlet]:
    """Prepares the folder as `prepare_log_folder` does, and opens an empty log for each rank.

    Raises:
      OSError: The folder cannot be made or written.
    """
    try:
        prepare_log_folder(folder)
        files = {rank: log_path(folder, rank).open("wb", buffering=0) for rank in ranks}
    except OSError as error:
        raise OSError(
            f"`log-dir` must be a folder that can be made and written; received {str(folder)!r}, "
            f"and {error.filename or folder} gives: {error.strerror}; do `--log-dir logs`."
        ) from error
    return {rank: Outlet(file, file.name) for rank, file in files.items()}


def prepare_log_folder(folder: pathlib.Path) -> None:
    """Makes the folder; logs of an earlier run move to a new folder `earlier-1`, `earlier-2`, ...

    The logs of all ranks move, also of ranks beyond the new run's, so that the logs in the folder
    itself are of one run.

    >>> import tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp(), "logs")
    >>> prepare_log_folder(folder)
    >>> written = log_path(folder, rank=0).write_text("the first run")
    >>> prepare_log_folder(folder)
    >>> [path.relative_to(folder).as_posix() for path in folder.rglob("*.log")]
    ['earlier-1/rank-0.log']
    """
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(folder.glob("rank-*.log"))
    if not earlier:
        return
    for number in itertools.count(1):
        kept = folder / f"earlier-{number}"
        try:
            kept.mkdir()
        except FileExistsError:
            continue
        for path in earlier:
            path.rename(kept / path.name)
        return
