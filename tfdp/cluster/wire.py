"""The messages between the processes of a cluster: a JSON header and raw bytes, lengths first.

Pickle is not used: what arrives from the network is data, never code.
"""

import asyncio
import json
import math
import struct
from typing import Any, TypeVar

_LENGTHS = struct.Struct(">IQ")
_LONGEST_HEADER = 1 << 26

T = TypeVar("T")


class NoMessageError(ConnectionError):
    """An error for bytes that are no message of tfdp."""

    def __init__(self) -> None:
        super().__init__("what arrived is no message of tfdp")


def frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Returns the bytes of one message.

    >>> frame({"type": "bye"})
    b'\\x00\\x00\\x00\\x0f\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00{"type": "bye"}'
    """
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


async def read(
    reader: asyncio.StreamReader, most_bytes: float = math.inf
) -> tuple[dict[str, Any], bytes]:
    """Returns the next message of a stream.

    Args:
      reader: The stream.
      most_bytes: The length above which a message is not read.

    Raises:
      NoMessageError: The bytes are no message, too long a one, or one that is nested too deeply.
      ConnectionError: The other side is gone.
    """
    try:
        header_bytes, payload_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if header_bytes > _LONGEST_HEADER or header_bytes + payload_bytes > most_bytes:
            raise NoMessageError
        header = _parsed(await reader.readexactly(header_bytes))
        return header, await reader.readexactly(payload_bytes)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the connection was closed") from error


def field(header: dict[str, Any], name: str, kind: type[T]) -> T:
    """Returns the value that a message has under `name`, of type `kind`.

    Raises:
      NoMessageError: The value is missing, or of another type.

    >>> field({"rank": 1}, "rank", int)
    1
    """
    value = header.get(name)
    if type(value) is not kind:
        raise NoMessageError
    return value


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoMessageError from error
    if not isinstance(header, dict):
        raise NoMessageError
    return header
