"""Messages between the processes of a cluster: a JSON header and raw bytes, length first.

No pickle: what arrives from the network is data, never code.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct(">IQ")
_LONGEST_HEADER = 1 << 26


def frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """The bytes of one message.

    >>> frame({"type": "bye"})
    b'\\x00\\x00\\x00\\x0f\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00{"type": "bye"}'
    """
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


async def read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """The next message of a stream.

    Raises:
      ConnectionError: The other side is gone, or sends something else.
    """
    try:
        header_bytes, payload_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        header = _parsed(header_bytes, await reader.readexactly(_checked(header_bytes)))
        return header, await reader.readexactly(payload_bytes)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the connection was closed") from error


def send(connection: socket.socket, header: dict[str, Any]) -> None:
    """Sends a message without a payload, by the connection's timeout."""
    connection.sendall(frame(header))


def receive(connection: socket.socket) -> dict[str, Any]:
    """Receives a message without a payload, by the connection's timeout.

    Raises:
      ConnectionError: The other side is gone, or sends something else.
    """
    header_bytes, payload_bytes = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    if payload_bytes:
        raise ConnectionError("a message with a payload came before the cluster was up")
    return _parsed(header_bytes, _exactly(connection, _checked(header_bytes)))


def _checked(header_bytes: int) -> int:
    if header_bytes > _LONGEST_HEADER:
        raise ConnectionError("what arrived is no message of tfdp")
    return header_bytes


def _parsed(header_bytes: int, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ConnectionError("what arrived is no message of tfdp") from error
    if not isinstance(header, dict):
        raise ConnectionError("what arrived is no message of tfdp")
    return header


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the connection was closed")
        parts += part
    return parts
