"""Messages arrive whole, or not at all."""

import asyncio
import struct

import pytest

from tfdp.cluster import wire


def read_all(data, **limits):
    """What a stream of `data` holds."""

    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await wire.read(reader, **limits)

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
        struct.pack(">IQ", 200_000, 0) + b"[" * 200_000,
    ],
)
def test_what_is_no_message_is_a_broken_connection(data):
    with pytest.raises(wire.NoMessageError):
        read_all(data)


def test_a_message_that_is_too_long_is_not_read():
    data = wire.frame({"type": "post"}, b"payload")
    assert read_all(data, most_bytes=len(data))[1] == b"payload"
    with pytest.raises(wire.NoMessageError):
        read_all(data[:12], most_bytes=16)
