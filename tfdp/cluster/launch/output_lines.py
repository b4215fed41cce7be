"""The lines of a rank's output: where each ends, and which of them are not shown.

Not shown are lines of libraries that tell a user nothing. On standard error they are TensorFlow's
information as it starts, and what it logs in each rank whose collectives end because another rank
has failed: the launcher says which rank that was, and why. On standard output gloo, which JAX uses
on CPUs, says for each device that it is connected.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping

MAX_LINE_BYTES = 2**20
SECONDS_BETWEEN_UPDATES = 1.0

_END = re.compile(rb"\r+\n?|\n")

# The least severity that TensorFlow is to log; that of information is 0.
LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"

_CHATTER = re.compile(
    rb"I\d{4} \d\d:|\d{4}-\d\d-\d\d \S+ I "  # absl's and TensorFlow's lines of information
    rb"|WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions: "
    rb"|[EW]\d{4} \d\d:.*(?:StartAbort|endezvous is aborting|Collective ops is aborted|recvmsg)"
    # What follows such a line.
    rb"|The error could be from a previous operation\. Restart your program to reset\."
    rb"|Additional GRPC error information from remote target "
    rb"|:\{\"created\":|\t \[\[(?:\{\{node )?\w"
)

_CONNECTED = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. ")


class LineSplitter:
    r"""A cutter of one stream into the lines to show.

    A carriage return begins the line anew, as on a terminal. The state of a bar that is redrawn
    many times a second is shown once a second, and when it is final. A line without end is cut at
    1 MiB. The bytes are not decoded.

    Args:
      clock: Returns seconds, for the pace of a progress bar.

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


def hidden_ones(
    environ: Mapping[str, str],
) -> tuple[Callable[[bytes], bool], Callable[[bytes], bool]]:
    """Returns what tells the lines of output, and of errors, that are not shown.

    These are none where the user asks for information.

    >>> in_output, in_errors = hidden_ones({})
    >>> in_errors(b"I0000 00:00:1795249739.743009    5687 port.cc:153] oneDNN is on.")
    True
    >>> in_errors(b"E0000 00:00:1795249739.743009    5687 cuda.cc:1] no device")
    False
    >>> in_output(b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number ... is : 1")
    True
    """
    if environ.get(LEVEL_VARIABLE) == "0":
        return (lambda line: False), (lambda line: False)
    return (
        lambda line: _CONNECTED.match(line) is not None,
        lambda line: _CHATTER.match(line) is not None,
    )
