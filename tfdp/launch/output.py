"""The ranks' output: to the launcher's own, prefixed with the rank, and to the logs."""

from __future__ import annotations

import collections
import os
import select
import threading
from collections.abc import Callable
from typing import BinaryIO

from tfdp.launch.lines import LineSplitter

KEPT_LINES = 400  # of each rank's standard error, to find its last error in

_CHUNK_BYTES = 2**16
_TICK_SECONDS = 0.2


class Sink:
    r"""Where whole lines go, those of all ranks; no two are ever mixed.

    Args:
        stdout, stderr: the launcher's own streams.
        on_broken: called once when nobody reads them any more.

    Example:
        >>> import io
        >>> sink = Sink(io.BytesIO(), io.BytesIO(), on_broken=lambda: None)
        >>> sink.write(sink.stdout, [b"[0] one\n", b"[0] two\n"])
        >>> sink.stdout.getvalue()
        b'[0] one\n[0] two\n'
    """

    def __init__(self, stdout: BinaryIO, stderr: BinaryIO, on_broken: Callable[[], None]) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._broken = False

    def write(self, stream: BinaryIO, lines: list[bytes]) -> None:
        """Writes complete lines to one of the streams, together."""
        with self._lock:
            if self._broken or not lines:
                return
            try:
                stream.write(b"".join(lines))
                stream.flush()
            except BrokenPipeError:
                self._broken = True
                # Python would complain when it flushes the rest at exit.
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
                self._on_broken()


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
        target: BinaryIO,
        log: BinaryIO | None,
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
                self._log.write(data[:cut])
                self._log.flush()
