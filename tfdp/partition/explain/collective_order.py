"""The dependencies between the collectives of a finished program, and their purposes.

Of a step of training, those of *buckets* give what variables that are trained are updated with:
gradients, and whatever travels with them. *Meetings* are others that buckets need: the step waits
for them before or inside its backward pass. All the rest are *endings*, such as sums of metrics.

A bucket may be needed by others, too: gradients travel with what the backward pass of a
BatchNormalization sums, and one update may come after another. What needs a bucket is in another
*set*.
"""

from collections.abc import Collection, Sequence, Set
from typing import NamedTuple

from tfdp.partition.emit.writer import called
from tfdp.partition.partitioning import ReplicaProgram
from tfdp.partition.program_record import Exchanged
from tfdp.partition.rules.variables import ASSIGNMENTS, SCATTERS, WRITES

_WRITES = frozenset({*ASSIGNMENTS, *SCATTERS, *WRITES})


class CollectiveOrder:
    """What the collectives of a program need of each other, from one pass over its functions.

    A number stands for each collective, and a set of them is an `int` with a bit for each.

    Args:
      program: The program.
      trained: Which of its `externals` are variables that are trained.

    Attributes:
      collectives: The collectives, in the order in which they begin.
      needs: For each of them the set of those whose results it needs.
      within: For each "branch" or "loop": what holds it; "": it is in every step.
      updates: For each operation that writes a trained variable the set of those that it needs.
    """

    def __init__(self, program: ReplicaProgram, trained: Collection[int] = ()) -> None:
        self.collectives = program.report.exchanged
        self.needs = [0] * len(self.collectives)
        self.within = [""] * len(self.collectives)
        self.updates: list[int] = []
        self._functions = {each.signature.name: each for each in program.functions}
        self._numbers = {(each.function, each.node): n for n, each in enumerate(self.collectives)}
        arguments = self._arguments(program.name)
        externals = arguments[len(arguments) - len(program.externals) :]
        self._visit(program.name, 0, "", {externals[index] for index in trained})

    def _visit(self, name: str, around: int, within: str, trained: Set[str]) -> int:
        """Goes through a function, and those that it calls; returns the collectives in it.

        Args:
          name: The function.
          around: What the operation needs that calls it.
          within: Where that is, as of a collective.
          trained: Its arguments that are trained variables.
        """
        held, holders = 0, set[str]()
        results: dict[str, int] = {}  # of each operation what one needs that takes its result
        for node in self._functions[name].node_def:
            needed = waited = own = 0
            for given in node.input:
                source = given.removeprefix("^").partition(":")[0]
                if given.startswith("^") and source in holders:
                    waited |= results[source]
                else:
                    needed |= results.get(source, 0)  # an argument needs none
            if (name, node.name) in self._numbers:
                number = self._numbers[name, node.name]
                self.needs[number], self.within[number] = needed | around, within
                own = 1 << number
            taken = [each for each in node.input if not each.startswith("^")]
            if node.op in _WRITES and not trained.isdisjoint(taken):
                self.updates.append(needed | waited | around)
            inner = "loop" if node.op == "While" or within == "loop" else "branch"
            for function in called(node):
                if function in self._functions:
                    # What chooses a branch is not given to it.
                    given_to = taken[1:] if node.op in ("If", "Case") else taken
                    pairs = zip(self._arguments(function), given_to, strict=False)
                    handles = {argument for argument, each in pairs if each in trained}
                    own |= self._visit(function, needed | around, inner, handles)
            if own:
                holders.add(node.name)
            else:  # collectives begin one after the other, whether they need each other or not
                needed |= waited
            results[node.name] = needed | own
            held |= own
        return held

    def _arguments(self, function: str) -> Sequence[str]:
        return [each.name for each in self._functions[function].signature.input_arg]


class Purposes(NamedTuple):
    """The collectives of a program by what they are for.

    Attributes:
      buckets: Sets of those that give updates. In a set none needs another: one backward pass gives
        their partials.
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
    order = CollectiveOrder(program, trained)
    buckets = meetings = 0
    for update in order.updates:
        last = update
        for number in members(update):
            last &= ~order.needs[number]
        buckets |= last
    sets: list[list[int]] = []
    for number in members(buckets):
        needs, function = order.needs[number], order.collectives[number].function
        meetings |= needs
        if not sets or any(
            function != order.collectives[each].function or needs >> each & 1 for each in sets[-1]
        ):
            sets.append([])
        sets[-1].append(number)

    def exchanged(numbers: Sequence[int]) -> list[Exchanged]:
        return [order.collectives[number] for number in numbers]

    everything = (1 << len(order.needs)) - 1
    return Purposes(
        [exchanged(each) for each in sets],
        exchanged(members(meetings & ~buckets)),
        exchanged(members(everything & ~meetings & ~buckets)),
    )


def members(collectives: int) -> list[int]:
    """Returns the numbers of a set of collectives.

    >>> members(0b1101)
    [0, 2, 3]
    """
    return [number for number in range(collectives.bit_length()) if collectives >> number & 1]
