"""The exchanges of a step and their reasons: a report for the step's author."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfdp.base import words
from tfdp.base.atomic_files import replace_text
from tfdp.partition.explain import explanation_text
from tfdp.partition.explain.collective_order import CollectiveOrder, members
from tfdp.partition.partitioning import ReplicaProgram
from tfdp.partition.program_record import (
    AFTER,
    EVERYWHERE,
    PRODUCTS,
    SHARE,
    WHOLE,
    Computed,
    Content,
    Gathered,
    total_bytes,
)
from tfdp.partition.sizes import Batch, SizeLike, evaluated

FILE = "explain.json"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Amount:
    """A number of operations, and how many of them are matrix products and convolutions."""

    operations: int = 0
    products: int = 0


@dataclasses.dataclass(frozen=True)
class CollectiveFacts:
    """What is said of one collective.

    Attributes:
      number: Its place in the order in which they begin, from 1.
      kind: "sum", "gather", "from first"; of variables that are sharded "sum of parts" and "gather
        of parts"; or "update": what replicas exchange in one of their own.
      tensors: The number of tensors that travel together.
      size_bytes: Their bytes; None where only the step knows them.
      size: The same in words, such as "1024*batch_0 bytes".
      bytes_sent: The bytes that each replica sends for it.
      largest: The largest tensor: the operation that gives it, its dtype and shape.
      operation: The type of the operation that asked for it; "": the end of the program did.
      line: The user's line that made that operation.
      why: What it is needed for.
      normalization_bytes: The bytes of what plain BatchNormalization asked for: statistics of the
        batch in the forward pass, and sums for their gradients.
      within: "branch" or "loop": what holds it; "": it is in every step.
      needs: The numbers of those whose results it needs.
    """

    number: int
    kind: str
    tensors: int
    size_bytes: int | None
    size: str
    bytes_sent: int | None
    largest: str
    operation: str
    line: str
    why: str
    normalization_bytes: int
    within: str
    needs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class GatheredFacts:
    """What is said of operations of one type and line that are computed on the gathered batch.

    Attributes:
      operation: Their type.
      line: The user's line that made them.
      reason: Why they are.
      times: The number of operations.
      tensors: The number of tensors that are gathered for them.
      size_bytes: The bytes of those; None where only the step knows them.
      size: The same in words.
    """

    operation: str
    line: str
    reason: str
    times: int
    tensors: int
    size_bytes: int | None
    size: str


@dataclasses.dataclass(frozen=True)
class CollectiveGroup:
    """Operations that are computed in one place.

    Attributes:
      amount: How many there are.
      types: How many of each type, the most frequent first.
    """

    amount: Amount
    types: Mapping[str, int]

    @classmethod
    def of(cls, computed: Iterable[Computed]) -> CollectiveGroup:
        """Returns the group of some operations."""
        counts = collections.Counter(each.operation for each in computed)
        types = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        return cls(Amount(counts.total(), sum(counts[each] for each in PRODUCTS)), types)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The exchanges of a step and their reasons, and the operations on shards and on whole batches.

    `explain` makes it; its `str` is its `text`.

    Attributes:
      replicas: The number of replicas.
      total: The operations of the step, without constants.
      collectives: The collectives, in the order in which they begin.
      whole: The operations that every replica computes on the whole batch.
      share: The operations that each replica computes on its own shard of the batch.
      everywhere: The operations on replicated tensors, such as weights, alike on every replica.
      gathered: Operations of `everywhere` whose inputs would be sharded without an earlier gather.
      undivided: The products of the batch that every replica computes whole: 0 is the goal.
    """

    replicas: int
    total: Amount
    collectives: tuple[CollectiveFacts, ...]
    whole: tuple[GatheredFacts, ...]
    share: CollectiveGroup
    everywhere: CollectiveGroup
    gathered: CollectiveGroup
    undivided: int = 0

    @property
    def bytes_sent(self) -> int:
        """The bytes that a replica sends in a step, outside of loops, as far as they are known."""
        return sum(each.bytes_sent or 0 for each in self.collectives if each.within != "loop")

    @property
    def chain(self) -> int:
        """The length of the longest chain of collectives in which each needs the one before."""
        lengths: dict[int, int] = {}
        for each in self.collectives:
            lengths[each.number] = 1 + max((lengths.get(n, 0) for n in each.needs), default=0)
        return max(lengths.values(), default=0)

    def text(self) -> str:
        """Returns it as plain text of 80 columns."""
        return explanation_text.text(self)

    def __str__(self) -> str:
        return self.text()

    def json(self) -> dict[str, Any]:
        """Returns it as an object for JSON."""
        found: dict[str, Any] = {"format": _FORMAT, "summary": explanation_text.summary(self)}
        found |= {"bytes_sent": self.bytes_sent, "chain": self.chain} | dataclasses.asdict(self)
        for values, facts in zip(found["collectives"], self.collectives, strict=True):
            values["asked_by"] = explanation_text.asked_by(facts)
        return found

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes `explain.json` into a folder; in a log directory `tfdp report` shows it.

        Raises:
          OSError: The folder does not exist, or cannot be written.

        >>> import tempfile
        >>> none = CollectiveGroup.of([])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Explanation(2, Amount(), (), (), none, none, none).write(folder)
        ...     os.listdir(folder)
        ['explain.json']
        """
        text = json.dumps(self.json(), indent=1, ensure_ascii=False)
        replace_text(pathlib.Path(folder) / FILE, f"{text}\n")


def explain(program: ReplicaProgram, lengths: Mapping[Batch, int] | None = None) -> Explanation:
    """Returns what a program exchanges and why, what it computes whole, and what is local.

    Bytes that a replica sends are those of a ring: of a sum of n bytes 2 (N - 1) / N * n, of n
    gathered bytes (N - 1) / N * n.

    Args:
      program: The program.
      lengths: The lengths of batches, for bytes in numbers; without one they are in its terms.
    """
    known, order, report = lengths or {}, CollectiveOrder(program), program.report

    def group(*places: str) -> CollectiveGroup:
        return CollectiveGroup.of(each for each in report.computed if each.place in places)

    return Explanation(
        replicas=report.num_replicas,
        total=CollectiveGroup.of(report.computed).amount,
        collectives=tuple(
            _facts(order, number, known, report.num_replicas)
            for number in range(len(order.collectives))
        ),
        whole=_whole(report.whole, known),
        share=group(SHARE),
        everywhere=group(EVERYWHERE, AFTER),
        gathered=group(AFTER),
        undivided=group(WHOLE, AFTER).amount.products,
    )


def _facts(
    order: CollectiveOrder, number: int, lengths: Mapping[Batch, int], replicas: int
) -> CollectiveFacts:
    exchanged = order.collectives[number]
    known, size = _measured(exchanged.size_bytes, lengths)
    # Code of the replicas' own may be given nothing that travels.
    contents = exchanged.contents or [Content(exchanged.node, exchanged.node, "of its own", None)]
    # A tensor whose size is not known travels alone.
    sizes = [each.size_bytes if isinstance(each.size_bytes, int) else 0 for each in contents]
    largest = contents[sizes.index(max(sizes))]
    return CollectiveFacts(
        number=number + 1,
        kind=exchanged.kind,
        tensors=exchanged.tensors,
        size_bytes=known,
        size=size,
        bytes_sent=exchanged.bytes_sent(known, replicas),
        largest=f"{largest.source}, {largest.kind}",
        operation=exchanged.operation,
        line=exchanged.line,
        why=exchanged.why,
        normalization_bytes=exchanged.normalization_bytes,
        within=order.within[number],
        needs=tuple(each + 1 for each in members(order.needs[number])),
    )


def _whole(records: Sequence[Gathered], lengths: Mapping[Batch, int]) -> tuple[GatheredFacts, ...]:
    groups: dict[tuple[str, str, str], list[Gathered]] = {}
    for each in records:
        groups.setdefault((each.operation, each.line, each.reason), []).append(each)
    found = []
    for (operation, line, reason), same in groups.items():
        total = total_bytes(each.gathered_bytes for each in same)
        tensors = sum(each.gathered for each in same)
        measured = _measured(total, lengths)
        found.append(GatheredFacts(operation, line, reason, len(same), tensors, *measured))
    return tuple(found)


def _measured(size: SizeLike | None, lengths: Mapping[Batch, int]) -> tuple[int | None, str]:
    """Returns bytes, if they are known, and in words."""
    if size is None:
        return None, "bytes that only the step knows"
    value = evaluated(size, lengths)
    return (value, words.size(value)) if isinstance(value, int) else (None, f"{value} bytes")
