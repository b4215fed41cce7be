"""What waits for what in a finished program: its collectives, and the operations around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdp.partition.explain.collective_order import Ordering, called
from tfdp.partition.partitioning import ReplicaProgram
from tfdp.partition.program_record import PRODUCTS, Computed, Content, Exchanged


@dataclasses.dataclass(frozen=True)
class Amount:
    """A number of operations, and how many of them are matrix products and convolutions.

    >>> Amount(3, 1) + Amount(2, 0)
    Amount(operations=5, products=1)
    """

    operations: int = 0
    products: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.operations + other.operations, self.products + other.products)

    @classmethod
    def of(cls, computed: Computed) -> Amount:
        """Returns the amount that one operation is."""
        return cls(1, int(computed.operation in PRODUCTS))


@dataclasses.dataclass(frozen=True)
class Position:
    """A collective's place in a program.

    Attributes:
      exchanged: The collective.
      needs: The numbers of those whose results it needs.
      overlaps: The operations that neither need it nor are needed by it.
      within: "branch" or "loop": what holds it; "": it is in every step.
      largest: The operation that gives the largest of its tensors, by its name in the program of
        one device.
      largest_kind: The dtype and shape of that tensor.
    """

    exchanged: Exchanged
    needs: Sequence[int]
    overlaps: Amount
    within: str
    largest: str
    largest_kind: str


class Dependencies:
    """What waits for what in a program.

    Args:
      program: The program.

    Attributes:
      functions: Its functions that are called, by name.
      collectives: Its collectives, in the order in which they begin.
      computed: Its operations.
      total: The amount of those.
    """

    def __init__(self, program: ReplicaProgram) -> None:
        functions = {each.signature.name: each for each in program.functions}
        self.functions = {program.name: Ordering(functions[program.name], None)}
        open_ = [program.name]
        while open_:
            outer = self.functions[open_.pop()]
            for node in outer.definition.node_def:
                for name in called(node):
                    if name in functions:
                        self.functions[name] = Ordering(functions[name], (outer, node))
                        open_.append(name)
        report = program.report
        exchanged = [each for each in report.exchanged if each.function in self.functions]
        for number, each in enumerate(exchanged):
            self.functions[each.function].holds(each.node, 1 << number)
        for function in self.functions.values():
            function.connect()
        self.computed = [each for each in report.computed if each.function in self.functions]
        self.total = sum(map(Amount.of, self.computed), Amount())
        self._touched = [self._touches(each) for each in self.computed]
        self._holders = self._all_holders()
        self.collectives = [self._position(number, each) for number, each in enumerate(exchanged)]

    def _touches(self, computed: Computed) -> int:
        """Returns the collectives that an operation needs, is, or is needed by."""
        function, found = self.functions[computed.function], 0
        for name in computed.nodes:
            found |= function.needs[name] | function.needed_by[name] | function.own.get(name, 0)
        return found

    def _position(self, number: int, exchanged: Exchanged) -> Position:
        function = self.functions[exchanged.function]
        around = list(function.outwards())
        needs = function.results[exchanged.node]
        for inner in around:
            if inner.caller is not None:
                outer, node = inner.caller
                needs |= outer.results[node.name]
        loops = [inner.caller[1].op == "While" for inner in around if inner.caller is not None]
        # Code of the replicas' own may be given nothing that travels.
        contents = exchanged.contents or [Content(exchanged.node, "of its own", None)]
        largest = max(
            range(len(contents)), key=lambda index: _comparable(contents[index].size_bytes)
        )
        return Position(
            exchanged=exchanged,
            needs=_members(needs),
            overlaps=self._overlaps(number, {each.definition.signature.name for each in around}),
            within="loop" if any(loops) else "branch" if loops else "",
            largest=function.source_of(contents[largest].node),
            largest_kind=contents[largest].kind,
        )

    def _overlaps(self, number: int, around: set[str]) -> Amount:
        """Returns the operations that a collective leaves alone.

        Args:
          number: The collective.
          around: The functions that hold it. Of another branch or loop all operations count or
            none, as the operation does that calls it from one of these.
        """
        total = Amount()
        for each, holders in zip(self.computed, self._holders, strict=True):
            which = next(index for function, index in holders if function in around)
            if not self._touched[which] >> number & 1:
                total += Amount.of(each)
        return total

    def _all_holders(self) -> list[list[tuple[str, int]]]:
        """Returns for each operation its function and number, then those of what calls that."""
        numbers = {
            (each.function, node): number
            for number, each in enumerate(self.computed)
            for node in each.nodes
        }
        found = []
        for number, each in enumerate(self.computed):
            holders = [(each.function, number)]
            caller = self.functions[each.function].caller
            while caller is not None:
                outer, node = caller
                name = outer.definition.signature.name
                holders.append((name, numbers[name, node.name]))
                caller = outer.caller
            found.append(holders)
        return found


def _members(collectives: int) -> list[int]:
    return [number for number in range(collectives.bit_length()) if collectives >> number & 1]


def _comparable(size: object) -> int:
    """Returns bytes to compare by; a tensor whose size is not known travels alone."""
    return size if isinstance(size, int) else 0
