"""Streams of bytes, cut into lines wherever the chunks happen to end."""

import pytest

from tfdp.launch.lines import MAX_LINE_BYTES, LineSplitter


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def split(*chunks):
    lines = LineSplitter(Clock())
    return [line for chunk in chunks for line in lines.feed(chunk)] + list(lines.end())


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_do_not_depend_on_where_chunks_end(size):
    data = b"one\n\ntwo\r\n 5%\r 9%\r\n 1%\r 2%\rthree\nlast"
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert split(*chunks) == [b"one", b"", b"two", b" 9%", b"three", b"last"]


def test_a_progress_bar_is_shown_once_a_second():
    clock = Clock()
    lines = LineSplitter(clock)
    shown = []
    for tenth in range(35):
        clock.now = tenth / 10
        shown += lines.feed(b"\r%d" % tenth)
    shown += lines.feed(b"\rdone\n")
    assert shown == [b"9", b"19", b"29", b"done"]


def test_a_bar_that_never_ends_its_line_is_shown_at_the_end():
    assert split(b" 1%\r 2%\r") == [b" 2%"]
    assert split(b"\r 1%\r 2%") == [b" 2%"]


def test_a_line_without_end_is_cut():
    lines = split(*[b"x" * 2**16] * 40, b"\r" * 2**20)
    assert b"".join(lines) == b"x" * (40 * 2**16)
    assert max(map(len, lines)) <= MAX_LINE_BYTES + 2**16
