"""What the collectives of a step of training are for.

Those of *buckets* give what variables that are trained are updated with: gradients, and whatever
travels with them. *Meetings* are others that buckets need: the step waits for them before or inside
its backward pass. All the rest are *endings*, such as sums of metrics.

A bucket may be needed by others, too: gradients travel with what the backward pass of a
BatchNormalization sums, and one update may come after another. What needs a bucket is
in another *set*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tfdp.partition._tensorflow import NodeDef
from tfdp.partition.explain.collective_order import Ordering, called
from tfdp.partition.explain.dependencies import Dependencies
from tfdp.partition.partitioning import ReplicaProgram
from tfdp.partition.program_record import Exchanged
from tfdp.partition.rules.variables import ASSIGNMENTS, SCATTERS, WRITES

_WRITES = frozenset({*ASSIGNMENTS, *SCATTERS, *WRITES})


class Purposes(NamedTuple):
    """The collectives of a program by what they are for.

    Attributes:
      buckets: Sets of those that give updates. In a set none needs another: one backward pass gives
        their summands.
      meetings: What buckets need.
      endings: The others.
    """

    buckets: Sequence[Sequence[Exchanged]]
    meetings: Sequence[Exchanged]
    endings: Sequence[Exchanged]


def purposes(program: ReplicaProgram, trained: Collection[int]) -> Purposes:
    """Returns what the collectives of a program are for.

    Args:
      program: The program.
      trained: Which of its `externals` are variables that are trained.
    """
    found = Dependencies(program)
    needs = [sum(1 << each for each in position.needs) for position in found.collectives]
    buckets = 0
    for write in _writes(found.functions, program, trained):
        last = write
        for number, of_number in enumerate(needs):
            if write >> number & 1:
                last &= ~of_number
        buckets |= last
    meetings = 0
    for number, of_number in enumerate(needs):
        if buckets >> number & 1:
            meetings |= of_number
    sets: list[list[int]] = []
    for number in _members(buckets):
        function = found.collectives[number].exchanged.function
        if not sets or any(
            function != found.collectives[each].exchanged.function or needs[number] >> each & 1
            for each in sets[-1]
        ):
            sets.append([])
        sets[-1].append(number)

    def exchanged(numbers: Sequence[int]) -> list[Exchanged]:
        return [found.collectives[number].exchanged for number in numbers]

    everything = (1 << len(needs)) - 1
    return Purposes(
        [exchanged(each) for each in sets],
        exchanged(_members(meetings & ~buckets)),
        exchanged(_members(everything & ~meetings & ~buckets)),
    )


def _writes(
    functions: Mapping[str, Ordering], program: ReplicaProgram, trained: Collection[int]
) -> Iterator[int]:
    """Yields for each operation that writes a trained variable the collectives that it needs."""
    (main,) = (each for each in program.functions if each.signature.name == program.name)
    arguments = [each.name for each in main.signature.input_arg]
    externals = arguments[len(arguments) - len(program.externals) :]
    # Of each function the names of the trained variables, and what its caller needs.
    open_ = [(program.name, {externals[index] for index in trained}, 0)]
    while open_:
        name, handles, outer = open_.pop()
        function = functions[name]
        for node in function.definition.node_def:
            taken = [each for each in node.input if not each.startswith("^")]
            if handles.isdisjoint(taken):
                continue
            needed = function.results[node.name] | outer
            if node.op in _WRITES:
                yield needed
            for inner in called(node):
                if inner in functions:
                    definition = functions[inner].definition
                    given = _given(node, taken)
                    names = [each.name for each in definition.signature.input_arg]
                    pairs = zip(names, given, strict=True)
                    open_.append((inner, {own for own, each in pairs if each in handles}, needed))


def _given(node: NodeDef, taken: Sequence[str]) -> Sequence[str]:
    """Returns what an operation gives to its functions: all but what chooses a branch."""
    return taken[1:] if node.op in ("If", "Case") else taken


def _members(collectives: int) -> list[int]:
    return [number for number in range(collectives.bit_length()) if collectives >> number & 1]
