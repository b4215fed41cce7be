"""A rank's pipe is cut into lines and read to its end, whether or not anything takes them."""

import io
import os
import threading

import pytest

from tfdp.cluster.launch.output import Outlet, RankStream, Sink
from tfdp.cluster.launch.output_lines import MAX_LINE_BYTES, LineSplitter

LINES = [b"line %d" % number for number in range(20_000)]


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


class Full(io.RawIOBase):
    """A disk that is full until `room` is made."""

    def __init__(self):
        self.room = False
        self.written = b""

    def writable(self):
        return True

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        self.written += bytes(data)
        return len(data)


@pytest.fixture
def passed_on():
    """Passes LINES, more than a pipe holds, on to a sink and a log; gives the thread that wrote."""

    def pass_on(sink, log=None):
        source, end = os.pipe()
        stream = RankStream("1", source, sink, sink.stdout, log)
        stream.start()
        with open(end, "wb") as rank:
            writer = threading.Thread(target=rank.writelines, args=([b"%s\n" % x for x in LINES],))
            writer.daemon = True
            writer.start()
            writer.join(60.0)
            assert not writer.is_alive(), "nobody reads what the rank writes"
        stream.join(60.0)
        os.close(source)
        return stream

    return pass_on


def test_a_full_disk_under_a_log_costs_the_log_alone(passed_on):
    out, err = io.BytesIO(), io.BytesIO()
    stream = passed_on(Sink(out, err, pytest.fail), Outlet(Full(), "logs/rank-1.log"))
    assert out.getvalue() == b"".join(b"[1] %s\n" % line for line in LINES)
    assert stream.last_lines[-1] == LINES[-1]
    (said,) = err.getvalue().decode().splitlines()
    assert "`logs/rank-1.log` must take what the ranks write" in said
    assert "No space left on device" in said


def test_standard_output_on_a_full_disk_costs_the_output_alone(passed_on):
    log, err = io.BytesIO(), io.BytesIO()
    passed_on(Sink(io.BufferedWriter(Full()), err, pytest.fail), Outlet(log, "logs/rank-1.log"))
    assert log.getvalue() == b"".join(b"%s\n" % line for line in LINES)
    assert err.getvalue().count(b"`standard output` must take") == err.getvalue().count(b"\n") == 1


def test_where_both_streams_are_on_one_full_disk_the_loss_is_told_when_there_is_room():
    disk = Full()
    sink = Sink(disk, disk, pytest.fail)
    sink.write(sink.stdout, [b"lost\n"])
    sink.write(sink.stderr, [b"lost\n"])
    disk.room = True
    sink.write(sink.stdout, [b"shown\n"])
    told = disk.written.decode().splitlines()
    assert [line.split("`")[1] for line in told[:-1]] == ["standard output", "standard error"]
    assert told[-1] == "shown"


def test_a_reader_that_leaves_is_told_of_once_and_the_other_stream_goes_on():
    reader, writer = os.pipe()
    os.close(reader)
    err, told = io.BytesIO(), []
    with open(writer, "wb", buffering=0) as broken:
        sink = Sink(broken, err, lambda: told.append("broken"))
        for _ in range(2):
            sink.write(sink.stdout, [b"nobody reads it\n"])
            sink.write(sink.stderr, [b"said\n"])
    assert told == ["broken"]
    assert err.getvalue() == b"said\nsaid\n"
