"""What a program exchanges between replicas, and why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Exchanged:
    """One collective of a program.

    Attributes:
      kind: "sum", "gather" or "from first".
      tensors: The number of tensors that travel together.
      bytes_sent: The bytes that a rank sends each time, or None where sizes are not known before.
      operation: The type of the operation that asked for it.
      line: The user's line that made that operation.
      why: What it needed it for.
      function: The function that holds it: the program's own, or one of a branch or a loop.
      node: The name of its call in that function.
    """

    kind: str
    tensors: int
    bytes_sent: int | None
    operation: str
    line: str
    why: str
    function: str
    node: str


@dataclasses.dataclass
class Whole:
    """An operation that every replica computes on whole tensors, though they were sharded.

    Attributes:
      operation: The type of the operation.
      line: The user's line that made it.
      reason: Why: no rule, or what the rule could not keep.
      gathered: The tensors that were gathered for it.
    """

    operation: str
    line: str
    reason: str
    gathered: int


class Report:
    """What one program exchanges, and what it computes whole.

    Args:
      num_replicas: The number of replicas.

    Attributes:
      exchanged: The collectives, in the order in which they begin.
      whole: The operations that are computed whole.
    """

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self.exchanged: list[Exchanged] = []
        self.whole: list[Whole] = []
