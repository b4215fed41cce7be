"""Bytes to lines, also where a progress bar overwrites its line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

MAX_LINE_BYTES = 2**20
SECONDS_BETWEEN_UPDATES = 1.0

_END = re.compile(rb"\r+\n?|\n")


class LineSplitter:
    r"""Cuts one stream into the lines to show.

    A carriage return begins the line anew, as on a terminal: of a bar that is redrawn many times a
    second, the state is shown once a second and when it is final. A line without end is cut at
    1 MiB. What the bytes mean is not looked at.

    Args:
        clock: seconds, for the pace of a progress bar.

    Example:
        >>> lines = LineSplitter(clock=lambda: 0.0)
        >>> list(lines.feed(b"one\ntw")), list(lines.feed(b"o\r\n 10%\r 20%\r100%\n."))
        ([b'one'], [b'two', b'100%'])
        >>> list(lines.end())
        [b'.']
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rest = b""
        self._overwritten = b""
        self._shown_at = clock()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Takes what was read and yields the lines that are complete, without their ends."""
        data = self._rest + chunk
        start = 0
        for end in _END.finditer(data):
            if end.end() == len(data) and not end[0].endswith(b"\n"):
                break  # maybe half of a "\r\n"
            text = data[start : end.start()]
            start = end.end()
            if end[0].endswith(b"\n"):
                yield text or self._overwritten
                self._showed()
                continue
            self._overwritten = text or self._overwritten
            if self._overwritten and self._clock() >= self._shown_at + SECONDS_BETWEEN_UPDATES:
                yield self._overwritten
                self._showed()
        self._rest = data[start:]
        if len(self._rest) >= MAX_LINE_BYTES:
            yield from self.end()

    def end(self) -> Iterator[bytes]:
        """Yields the last line if it was not ended."""
        last = self._rest.rstrip(b"\r") or self._overwritten
        if last:
            yield last
        self._rest = self._overwritten = b""

    def _showed(self) -> None:
        self._overwritten = b""
        self._shown_at = self._clock()
