"""The first words between rank 0 and a process that connects to it: who are you, and are you of us?

1. Rank 0 sends a nonce, and whether it has a secret.
2. The process sends a nonce, its proof that it knows the secret, and what it says of itself.
3. Rank 0 sends its own proof, to nobody who has not shown one.

Before the proof a message is short, and the caller gives the whole a deadline.
"""

from __future__ import annotations

import secrets
from typing import Any

from tfdp.cluster import wire
from tfdp.cluster.connections import Stream
from tfdp.cluster.secret import proof, proves

_PROTOCOL = "tfdp 2"
_MOST_BYTES = 1 << 16
_FIRST, _OTHER = "rank 0", "another rank"


class SecretError(Exception):
    """The two sides have not the same secret; says what each has, in this process' words.

    Attributes:
      introduction: What the other side says of itself, none of it proven.
    """

    def __init__(self, message: str, introduction: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.introduction = introduction or {}


async def greet(stream: Stream, secret: str | None) -> dict[str, Any]:
    """Returns Rank 0's side; gives what the other says of itself.

    Raises:
      SecretError: It has no secret, or another, or one where rank 0 has none.
      OSError: It is gone, or is none of us.
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


async def introduce(stream: Stream, introduction: dict[str, Any], secret: str | None) -> None:
    """Returns the other side: says `introduction`, and returns once rank 0 has shown that it is rank 0.

    Raises:
      SecretError: Rank 0 has no secret, or another, or one where this process has none.
      OSError: What listens there is gone, or is no rank 0.
    """
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
