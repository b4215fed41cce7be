"""Messages arrive whole, or not at all."""

import asyncio
import socket
import struct

import pytest

from tfdp.cluster import wire


def read_all(data):
    """What a stream of `data` holds."""

    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await wire.read(reader)

    return asyncio.run(read())


def test_header_and_payload_come_back():
    header = {"type": "post", "value": [1, 2.5, None, "ä"]}
    assert read_all(wire.frame(header, b"\x00\xff" * 1000)) == (header, b"\x00\xff" * 1000)


@pytest.mark.parametrize("cut", [0, 3, 12, 20, -1])
def test_a_cut_message_is_a_broken_connection(cut):
    data = wire.frame({"type": "post"}, b"payload")
    with pytest.raises(ConnectionError):
        read_all(data[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">IQ", 4, 0) + b"nope",
        struct.pack(">IQ", 2, 0) + b"[]",
    ],
)
def test_what_is_no_message_is_a_broken_connection(data):
    with pytest.raises(ConnectionError):
        read_all(data)


def test_blocking_ends_understand_each_other():
    one, other = socket.socketpair()
    with one, other:
        wire.send(one, {"type": "hello"})
        assert wire.receive(other) == {"type": "hello"}
        one.close()
        with pytest.raises(ConnectionError):
            wire.receive(other)
