"""The ranks' output: to the launcher's own, prefixed with the rank, and to the logs."""

from __future__ import annotations

import collections
import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import BinaryIO

from tfdp.launch.lines import LineSplitter

KEPT_LINES = 400  # of each rank's standard error, to find its last error in

_CHUNK_BYTES = 2**16
_TICK_SECONDS = 0.2


class Outlet:
    """A stream or a log, which takes what it can: the job matters more than its log.

    Args:
        file: what is written to, without Python's buffer, which would keep what failed.
        name: of it, for people.

    Attributes:
        failure: the first error, of a full disk as a rule; what comes later is tried again.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        with contextlib.suppress(OSError):
            file.flush()
        self._file = getattr(file, "raw", file)
        self.name = name
        self.failure: OSError | None = None

    def write(self, data: bytes) -> bool:
        """Whether all could be written.

        Raises:
            BrokenPipeError: nobody reads it any more.
        """
        try:
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
    r"""Where whole lines go, those of all ranks; no two are ever mixed.

    Args:
        stdout, stderr: the launcher's own streams.
        on_broken: called once when nobody reads one of them any more.

    Example:
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
        """Where standard error is on the full disk too, it is tried again later."""
        if self._to_tell and self._write(self.stderr, self._to_tell):
            self._to_tell = b""


class RankStream(threading.Thread):
    """Passes on one stream of one rank, until it ends.

    Args:
        rank: the prefix.
        source: the descriptor to read.
        sink: where the lines go.
        target: which of the sink's streams.
        log: a file for the output as it is, or None.
        log_lock: held while a line is written to the log, which the rank's streams share.
    """

    def __init__(
        self,
        rank: int,
        source: int,
        sink: Sink,
        target: Outlet,
        log: Outlet | None,
        log_lock: threading.Lock,
    ) -> None:
        super().__init__(name=f"rank {rank} output", daemon=True)
        self.last_lines: collections.deque[bytes] = collections.deque(maxlen=KEPT_LINES)
        self._prefix = b"[%d] " % rank
        self._source, self._sink, self._target = source, sink, target
        self._log, self._log_lock = log, log_lock
        self._unlogged = b""
        self._rank_is_gone = threading.Event()

    def run(self) -> None:
        """Reads until the stream ends, or until there is nothing more of a rank that is gone."""
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

    def finish(self) -> None:
        """Waits until all is passed on, of a rank that is gone."""
        self._rank_is_gone.set()
        self.join()

    def _show(self, lines: list[bytes]) -> None:
        self.last_lines.extend(lines)
        self._sink.write(self._target, [b"%s%s\n" % (self._prefix, line) for line in lines])

    def _write_log(self, chunk: bytes, end: bool = False) -> None:
        """Writes up to the last end of a line, so that the rank's two streams do not mix."""
        if self._log is None:
            return
        data = self._unlogged + chunk
        cut = len(data) if end else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._unlogged = data[cut:]
        if cut:
            with self._log_lock:
                written = self._log.write(data[:cut])
            if not written:
                self._sink.tell_loss(self._log)
