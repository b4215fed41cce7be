"""The order in which the operations of a function are written, and what travels together.

1. Operations are written in the order of the trace, as soon as their inputs are there.
2. One that needs the sum of partials is put off until nothing else can be written. All sums that
   are waited for then travel together, in buckets in the order in which the partials came to be;
   so do partials that the program returns, whose sums it needs in any case.
3. Weights that are sharded are gathered for the operations that come next, and let go: see
   `Prefetch`. What fills no bucket waits meanwhile, such as sums of gradients.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdp.partition.flattening import Task, Wire
from tfdp.partition.layouts import PARTIAL, REPLICATED, Layout, Sharded
from tfdp.partition.marks import is_of_normalization
from tfdp.partition.program_record import Exchanged
from tfdp.partition.redistribute import Waiting
from tfdp.partition.rules.registry import RULES
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor, known, size_bytes

if TYPE_CHECKING:
    from tfdp.partition.propagation import Propagation

# So many types of operations are named of those that ask for sums.
_MOST_ASKING = 4


class OperationScheduler:
    def __init__(self, walk: Propagation, tasks: Sequence[Task], returned: Sequence[Wire]) -> None:
        self._walk, self._tasks = walk, {task.number: task for task in tasks}
        self._returned = returned if walk.writer.outer is None else ()
        self._keeps_partials = walk.program.communicator.keeps_partials
        self._needs: dict[Task, int] = {}
        self._users: dict[Task, list[Task]] = {}
        self._ready: list[int] = []
        self._waiting: list[tuple[Task, Waiting]] = []
        self._lending = Prefetch()

    def run(self) -> None:
        """Writes the operations.

        Raises:
          Waiting: An operation in a loop needs the sum of a tensor from outside of it.
        """
        for task in self._tasks.values():
            sources = {source for source, _ in task.inputs} | set(task.controls)
            sources = {source for source in sources if source.op is not None}
            self._needs[task] = len(sources)
            for source in sources:
                self._users.setdefault(source, []).append(task)
            if not sources:
                heapq.heappush(self._ready, task.number)
        while self._ready or self._waiting:
            if not self._ready:
                self._exchange()
            task = self._tasks[heapq.heappop(self._ready)]
            try:
                self._await_shared(task)
                inputs = [self._given(task, wire) for wire in task.inputs]
                self._walk.write(task, inputs)
            except Waiting as waiting:
                self._waiting.append((task, waiting))
                continue
            self._lending.note(inputs, task.results or ())
            for user in self._users.get(task, ()):
                self._needs[user] -= 1
                if not self._needs[user]:
                    heapq.heappush(self._ready, user.number)

    def _given(self, task: Task, wire: Wire) -> Tensor:
        """Returns an input of an operation: of a partial that is summed already, the sum.

        Where partials are wanted they go on as such wherever they can.
        """
        tensor = _result(*wire)
        if self._keeps_partials and not _needs_gathered(task, *wire):
            return tensor
        return known(tensor)

    def _await_shared(self, task: Task) -> None:
        """Puts off what could go on with a partial that another operation needs the sum of.

        The sum is sent once then; else what is made of the partial would be sent as well.

        Raises:
          Waiting: It is better to wait.
        """
        if self._keeps_partials:
            return
        partials = []
        for source, index in task.inputs:
            tensor = _result(source, index)
            users = self._users.get(source, ())
            if _is_open(tensor) and any(_needs_gathered(user, source, index) for user in users):
                partials.append(tensor)
        if partials:
            raise Waiting(partials)

    def _exchange(self) -> None:
        """Sums and gathers what is waited for, and lets what waits go on."""
        tensors = {id(tensor): tensor for _, each in self._waiting for tensor in each.tensors}
        outside = [each.origin for each in tensors.values() if each.origin is not None]
        if outside:
            raise Waiting(outside)
        first, _ = self._waiting[0]
        convert, asking = self._walk.convert, self._asking()
        report = self._walk.program.report
        convert.op = first.op
        wanted: dict[int, set[Layout]] = {}
        for _, each in self._waiting:
            for tensor in each.tensors:
                wanted.setdefault(id(tensor), set()).add(each.layout or REPLICATED)
        if any(map(_is_open, tensors.values())):
            returned = [_result(*wire) for wire in self._returned if wire[0].results is not None]
            tensors |= {id(each): each for each in returned if _is_open(each)}
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.number)
        lent = [tensor for _, each in self._waiting if each.briefly for tensor in each.tensors]
        if lent:
            lent = list({id(tensor): tensor for tensor in lent}.values())
            convert.join(lent, asking, self._lending.begin(lent))
        joined = [each for each in ordered if each.sharded and each.replicated is None]
        parts = {
            id(tensor): layout
            for tensor in ordered
            if len(wanted.get(id(tensor), ())) == 1
            for layout in wanted[id(tensor)]
            if isinstance(layout, Sharded)
        }
        scattered = [tensor for tensor in ordered if id(tensor) in parts]
        partials = [each for each in ordered if not (each.sharded or id(each) in parts)]
        for tensor in (*scattered, *partials):
            for variable in tensor.variables:
                variable.is_summed = True
        if lent:  # others can wait for more that travels with them
            scattered, partials, joined = map(self._filled, (scattered, partials, joined))
        begun = len(report.exchanged)
        convert.sum(partials, asking)
        for exchanged in report.exchanged[begun:]:
            exchanged.normalization_bytes = self._of_normalization(exchanged)
        convert.scatter(scattered, [parts[id(tensor)] for tensor in scattered], asking)
        convert.join(joined, asking)
        for task, _ in self._waiting:
            heapq.heappush(self._ready, task.number)
        self._waiting = []

    def _of_normalization(self, exchanged: Exchanged) -> int:
        """Returns the bytes of what plain BatchNormalization waits for in a collective."""
        asked = {
            tensor.local.node
            for task, each in self._waiting
            if task.op is not None and is_of_normalization(task.op.name)
            for tensor in each.tensors
        }
        sizes = [each.size_bytes for each in exchanged.contents if each.node in asked]
        return sum(size for size in sizes if isinstance(size, int))

    def _filled(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns those whose bucket is as large as what travels alone; the others wait for more.

        So a layer's bias does not go with each kernel, as a collective of its own.
        """
        least = self._walk.program.communicator.alone_bytes
        buckets = self._walk.program.buckets(tensors)
        full = [each for each in buckets if sum(size_bytes(t) or 0 for t in each) >= least]
        return [tensor for bucket in full for tensor in bucket]

    def _asking(self) -> str:
        return _asking([task.op for task, _ in self._waiting if task.op is not None])


class _Wave:
    """Weights that are gathered together, and the operations that use them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = {id(tensor): tensor for tensor in tensors}
        self.users: list[str] = []


class Prefetch:
    """Weights that are sharded, whole for the operations that come next (FSDP, 2304.11277).

    What is gathered together is a wave. A wave's tensors are whole until the next one is written:
    what needs one of them later, such as a layer's gradient, gathers it again. A wave begins when
    the operations that use the last but one are done, while those that use the last one compute.
    So no more than two waves' wholes are in memory.

    What is not lent stays whole until its last use: what a loop needs, which is gathered before it,
    and what an operation without a rule, or one that reshapes a weight's sharded axis, needs.
    """

    def __init__(self) -> None:
        self._waves: collections.deque[_Wave] = collections.deque(maxlen=2)

    def begin(self, tensors: Sequence[Tensor]) -> list[str]:
        """Ends a wave, whose tensors have no whole any more, and begins the next.

        Args:
          tensors: Those that are gathered next.

        Returns:
          What must be done before, as control inputs.
        """
        if self._waves:
            for tensor in self._waves[-1].tensors.values():
                tensor.replicated = None
        before = self._waves[0].users if len(self._waves) == 2 else []
        self._waves.append(_Wave(tensors))
        return before

    def note(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Notes an operation that is written, if it uses a whole of the last wave."""
        if self._waves and any(id(each) in self._waves[-1].tensors for each in inputs):
            nodes = [each.local.node for each in results]
            self._waves[-1].users += [f"^{node}" for node in dict.fromkeys(nodes)]


def _needs_gathered(user: Task, source: Task, index: int) -> bool:
    """Returns whether an operation can do nothing with a partial that it uses."""
    if user.op is None or (source, index) not in user.inputs:
        return False
    rule = RULES.get(user.op.type)
    return rule is None or not rule.partial


def _asking(ops: Sequence[SourceOp]) -> str:
    """Says which operations ask for sums: the first of each of a few types, by the user's lines."""
    first = {op.type: op for op in reversed(ops)}
    by_line: dict[str, list[str]] = {}
    for type_ in list(dict.fromkeys(op.type for op in ops))[:_MOST_ASKING]:
        by_line.setdefault(first[type_].line(), []).append(type_)
    return "; ".join(f"{', '.join(types)} at {line}" for line, types in by_line.items())


def _is_open(tensor: Tensor) -> bool:
    return tensor.layout == PARTIAL and tensor.replicated is None


def _result(task: Task, index: int) -> Tensor:
    assert task.results is not None
    return task.results[index]
