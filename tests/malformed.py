"""Bytes that no rank would send, the same for the same seed."""

import json
import random
import struct

from tfdp.cluster import wire

RANK = {"rank": 1, "world_size": 2, "address": "127.0.0.1:2222"}
MESSAGES = (
    {"nonce": "00", "proof": "00", "introduction": RANK},
    {"type": "post", "from": 1, "key": "x#0", "value": [1, 2]},
    {"type": "number?", "from": 1, "key": "x", "value": 1},
    {"type": "bye", "from": 1, "value": None},
)
VALUES = (None, True, -1, 2**70, 1e308, "", "\ud800", [], {}, [[]], {"rank": {}}, float("nan"))
STRANGERS = (
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"SSH-2.0-x\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93.",
)


def inputs(seed, count=200):
    """Yields `count` of them."""
    source = random.Random(seed)
    kinds = (_noise, _other_protocol, _nested, _wrong_length, _changed_bytes, _changed_values)
    for _ in range(count):
        yield source.choice(kinds)(source)


def _noise(source):
    return source.randbytes(source.choice([1, 11, 12, 13, 200, 5000]))


def _other_protocol(source):
    return source.choice(STRANGERS)


def _nested(source):
    text = source.choice([b"[", b'{"a":', b'{"introduction":[']) * source.choice([500, 20_000])
    return struct.pack(">IQ", len(text), 0) + text


def _wrong_length(source):
    text = json.dumps(source.choice(MESSAGES)).encode()
    lengths = [0, 1, len(text), 2**16, 2**26, 2**32 - 1]
    return struct.pack(">IQ", source.choice(lengths), source.choice([1, 2**20, 2**64 - 1])) + text


def _changed_bytes(source):
    data = bytearray(wire.frame(source.choice(MESSAGES), b"payload"))
    for _ in range(source.randrange(1, 6)):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data[: source.randrange(len(data))] if source.random() < 0.3 else data)


def _changed_values(source):
    message = json.loads(json.dumps(source.choice(MESSAGES)))
    part = source.choice([message, message.get("introduction", message)])
    for name in source.sample(list(part), source.randrange(1, len(part) + 1)):
        part[name] = source.choice(VALUES)
        if source.random() < 0.3:
            del part[name]
    return wire.frame(message)
