"""The handshake between rank 0 and a process that connects: both prove to know the secret.

1. Rank 0 sends a nonce, and whether it has a secret.
2. The process sends a nonce, its proof that it knows the secret, and its introduction.
3. Rank 0 sends its own proof, but only to a process that has shown one.

A message before the proof must be short, and the caller sets a deadline for the whole handshake.
"""

import asyncio
import secrets
from typing import Any

from tfdp.cluster import wire
from tfdp.cluster.connections import BUFFER_BYTES, Stream
from tfdp.cluster.secret import proof, proves

# The time that a process has to say who it is, and the number that may do so besides the expected.
STRANGER_SECONDS = 10.0
_MOST_STRANGERS = 64

_PROTOCOL = "tfdp 2"
_MOST_BYTES = 1 << 16
_FIRST, _OTHER = "rank 0", "another rank"


class SecretError(Exception):
    """An error where the two sides have not the same secret; says what each has, for this process.

    Attributes:
      introduction: What the other side says of itself, none of it proven.
    """

    def __init__(self, message: str, introduction: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.introduction = introduction or {}


async def greet(stream: Stream, secret: str | None) -> dict[str, Any]:
    """Conducts rank 0's side of the handshake, and returns the other side's introduction.

    Raises:
      SecretError: The other side has no secret, or another, or one where rank 0 has none.
      OSError: The other side is gone, or is no process of tfdp.
    """
    reader, writer = stream
    own = secrets.token_hex(32)
    greeting = {"protocol": _PROTOCOL, "nonce": own, "secret": secret is not None}
    writer.write(wire.frame(greeting))
    said, _ = await wire.read(reader, _MOST_BYTES)
    nonces = own + wire.field(said, "nonce", str)
    introduction, shown = wire.field(said, "introduction", dict), said.get("proof")
    alike = shown is None if secret is None else proves(shown, secret, _OTHER, nonces, introduction)
    answer = proof(secret, _FIRST, nonces) if secret is not None and alike else None
    writer.write(wire.frame({"proof": answer}))
    if not alike:
        has = "has none" if shown is None else "has one" if secret is None else "has another"
        raise SecretError(has, introduction)
    return introduction


class Strangers:
    """Those who have come and not yet shown who they are.

    One that says nothing, too much or nonsense is sent away after 10 s at the latest, and takes
    nobody's turn: when too many are introducing themselves, the one that came first must go. A rank
    that was among them comes again.

    Args:
      secret: The secret that they must know, or None.
      expected: How many may come at once besides.
    """

    def __init__(self, secret: str | None, expected: int = 0) -> None:
        self._secret, self._most = secret, expected + _MOST_STRANGERS
        self._writers: dict[asyncio.StreamWriter, None] = {}

    async def greet(self, stream: Stream) -> dict[str, Any]:
        """Returns one's introduction, as the function `greet` does, in time."""
        self._writers[stream[1]] = None
        if len(self._writers) > self._most:
            oldest = next(iter(self._writers))
            del self._writers[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(STRANGER_SECONDS):
                return await greet(stream, self._secret)
        finally:
            self._writers.pop(stream[1], None)

    def send_away(self) -> None:
        """Ends the connections of all."""
        for writer in self._writers:
            writer.transport.abort()


async def connect(host: str, port: int, introduction: dict[str, Any], secret: str | None) -> Stream:
    """Connects to rank 0, which takes `introduction` and shows that it knows the secret.

    Raises:
      SecretError: Rank 0 has no secret, or another, or one where this process has none.
      OSError: Nobody listens at the address, or somebody who is not rank 0.
    """
    stream = await asyncio.open_connection(host, port, limit=BUFFER_BYTES)
    try:
        await _introduce(stream, introduction, secret)
    except BaseException:
        stream[1].close()
        raise
    return stream


async def _introduce(stream: Stream, introduction: dict[str, Any], secret: str | None) -> None:
    reader, writer = stream
    greeting, _ = await wire.read(reader, _MOST_BYTES)
    if greeting.get("protocol") != _PROTOCOL:
        raise wire.NoMessageError
    own, theirs = secrets.token_hex(32), wire.field(greeting, "nonce", str)
    asks = wire.field(greeting, "secret", bool)
    shown = None if secret is None else proof(secret, _OTHER, theirs + own, introduction)
    writer.write(wire.frame({"nonce": own, "proof": shown, "introduction": introduction}))
    answer, _ = await wire.read(reader, _MOST_BYTES)
    if asks and secret is None:
        raise SecretError("rank 0 has one and this rank has none")
    if secret is not None and not asks:
        raise SecretError("this rank has one and rank 0 has none")
    if secret is not None and not proves(answer.get("proof"), secret, _FIRST, theirs + own):
        raise SecretError("rank 0 has another than this rank")
