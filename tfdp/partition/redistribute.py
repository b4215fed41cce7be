"""From one layout to another: what a replica computes, and what is sent for it."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition.emit.arithmetic import Arithmetic, Operand
from tfdp.partition.emit.writer import Output, Writer
from tfdp.partition.layouts import (
    LOCAL,
    PARTIAL,
    REPLICATED,
    Layout,
    Listed,
    Sharded,
)
from tfdp.partition.list_redistribute import list_to
from tfdp.partition.program_record import Content
from tfdp.partition.replica_program import Place, ProgramBuilder
from tfdp.partition.sizes import SizeLike
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor


class Waiting(Exception):
    """An operation needs what others need as well, and travels together: sums of partials, or all
    parts of variables that are sharded.

    Attributes:
      tensors: The tensors that it needs whole.
      layout: The sharding of a variable, if it needs the replica's part of a sum alone.
      briefly: Whether what needs them later is to gather them again.
    """

    def __init__(
        self, tensors: Sequence[Tensor], layout: Sharded | None = None, briefly: bool = False
    ) -> None:
        super().__init__()
        self.tensors, self.layout, self.briefly = list(tensors), layout, briefly


class Redistribution:
    """Makes replicated tensors, parts and partials in one function.

    Args:
      program: The program that the function belongs to.
      writer: The function.

    Attributes:
      op: The operation that is being written, for reports.
    """

    def __init__(self, program: ProgramBuilder, writer: Writer) -> None:
        self.program, self.writer = program, writer
        self.write = Arithmetic(writer)
        self.op: SourceOp | None = None

    def within(self, writer: Writer) -> Redistribution:
        """Returns what makes them in another function, for the same operation."""
        found = Redistribution(self.program, writer)
        found.op = self.op
        return found

    # ---- sizes and places

    def size(self, size: SizeLike) -> Output:
        """Returns a size as an int32 scalar."""
        return self.program.size(self.writer, size)

    def place(self, layout: Sharded) -> Place:
        """Returns the replica's place in the batch that a layout shards."""
        return self.program.place(layout.batch)

    def entries(self, layout: Sharded) -> Output:
        """Returns how many entries the replica holds along the axis, padding rows counted."""
        return self._times(self.place(layout).rows, layout.inner * layout.outer)

    def start(self, layout: Sharded) -> Output:
        """Returns the place of the replica's first example, or of the padding row in the batch."""
        place = self.place(layout)
        if not self.program.may_lack_rows(layout.batch):
            return place.start
        last = self.write.maximum(self.write.subtract(place.total, place.rows), 0)
        return self.write.minimum(place.start, last)

    def _times(self, count: Output, factor: SizeLike) -> Output:
        return count if factor == 1 else self.write.multiply(count, self.size(factor))

    # ---- replicated tensors

    def require_sums(self, tensors: Sequence[Tensor]) -> None:
        """Puts the operation off until partials are summed.

        Raises:
          Waiting: One of the tensors is a partial that is not summed yet.
        """
        waiting = [each for each in tensors if each.layout == PARTIAL and each.replicated is None]
        if waiting:
            raise Waiting(waiting)

    def replicated(self, tensor: Tensor, why: str = "") -> Output:
        """Returns the replicated tensor: nothing is sent if it is replicated or was made before.

        Raises:
          Waiting: The tensor is a partial that is not summed yet.
          ValueError: The tensor has no whole.
        """
        self.require_sums([tensor])
        if tensor.replicated is None:
            if tensor.sharded is None:
                raise ValueError(f"a {tensor.layout} tensor has no whole value")
            if tensor.origin is not None:  # once, before the loop, which leaves it as it is
                around = self.within(tensor.origin.local.writer)
                tensor.replicated = around.replicated(tensor.origin, why)
            else:
                tensor.replicated = self._gathered(tensor, tensor.sharded, why)
        return tensor.replicated

    def _gathered_in_three_axes(self, tensor: Tensor, layout: Sharded, why: str) -> Output:
        """Gathers a tensor whose number of axes is known when the step runs: those before the shard
        one are merged, and those after it.
        """
        entries = self.entries(layout)
        merged, before, after = self._in_three_axes(tensor.local, layout.axis, entries)
        parts = Tensor(merged, layout.at(1), [None, layout.length, None])
        found = self._gathered(parts, layout.at(1), why)
        return self._in_axes_as_before(found, before, self.size(layout.length), after)

    def _in_three_axes(
        self, output: Output, axis: int, entries: Output
    ) -> tuple[Output, Output, Output]:
        """Merges the axes before one that has so many entries, and those after it.

        Returns:
          The tensor with three axes, and the sizes before and after.
        """
        write = self.write
        shape = write.shape(output)
        before, after = write.slice(shape, [0], [axis]), write.slice(shape, [axis + 1], [-1])
        sizes = [write.reduce("Prod", before, [0]), entries, write.reduce("Prod", after, [0])]
        return write.reshape(output, sizes), before, after

    def _in_axes_as_before(
        self, output: Output, before: Output, entries: Output, after: Output
    ) -> Output:
        """Gives a tensor of three axes the axes that were merged, with so many entries between."""
        sizes = [before, self.write.pack([entries], tf.int32), after]
        return self.write.reshape(output, self.write.concat(sizes, 0))

    def _gathered(self, tensor: Tensor, layout: Sharded, why: str) -> Output:
        """Gathers rows: entries of the axis are brought in front, example by example."""
        if self.program.num_replicas == 1:
            return self.write.identity(tensor.local)
        write, rank, axis = self.write, tensor.rank, layout.axis
        if rank is None:
            return self._gathered_in_three_axes(tensor, layout, why)
        place = self.place(layout)
        others = [self.size(tensor.dim(each)) for each in range(rank) if each != axis]
        before, after = others[:axis], others[axis:]
        local, blocks = tensor.local, layout.outer != 1
        inner, outer = self.size(layout.inner), self.size(layout.outer)
        if blocks:  # [before, outer, rows * inner, after], and the rows to the front
            local = write.reshape(
                local, [*before, outer, write.multiply(place.rows, inner), *after]
            )
            order = [axis + 1, *(each for each in range(rank + 1) if each != axis + 1)]
        else:
            order = [axis, *(each for each in range(rank) if each != axis)]
        rows = write.transpose(local, order)
        static = [tensor.shape[each] if tensor.shape else None for each in range(rank)]
        rest = [
            each if isinstance(each, int) else None for at, each in enumerate(static) if at != axis
        ]
        if blocks:
            rest.insert(axis, layout.outer if isinstance(layout.outer, int) else None)
        if self.program.may_lack_rows(layout.batch):
            count = self._times(place.count, layout.inner)
            rows = write.slice_axis(rows, len(order), 0, 0, count)
        counts = self._times(place.counts, layout.inner)
        spec = tf.TensorSpec([None, *rest], tensor.dtype)
        collective = self.program.communicator.gather(spec)
        (found,) = self.program.exchange(
            self.writer,
            "gather",
            collective,
            [rows, counts],
            self.op,
            why,
            [Content.of_tensor(tensor)],
            makes_whole=True,
        )
        back = [order.index(each) for each in range(len(order))]
        found = write.transpose(found, back)
        if blocks:
            total = self.size(layout.batch.length * layout.inner * layout.outer)
            found = write.reshape(found, [*before, total, *after])
        return found

    def sum(self, tensors: Sequence[Tensor], why: str = "") -> None:
        """Sums partials, bucket by bucket; each tensor's `replicated` is its sum then."""
        program = self.program
        if program.num_replicas == 1:
            for tensor in tensors:
                tensor.replicated = tensor.local
            return
        # First what is to be compared, with what can take it along.
        buckets = sorted(
            program.buckets(tensors),
            key=lambda bucket: not program.compares_with(self.writer, bucket),
        )
        for bucket in buckets:
            sums = program.sum(self.writer, bucket, self.op, why)
            for tensor, output in zip(bucket, sums, strict=True):
                tensor.replicated = output

    # ---- parts and partials

    def part(self, tensor: Tensor, layout: Sharded, why: str = "") -> Output:
        """Returns the replica's part of a tensor in a layout; a replicated tensor is sliced.

        Raises:
          Waiting: The tensor is a partial that is not summed yet.
        """
        if tensor.layout == layout:
            return tensor.local
        if layout not in tensor.parts:  # `scatter` may have made it
            tensor.parts[layout] = self.sliced(self.replicated(tensor, why), tensor, layout)
        return tensor.parts[layout]

    def sliced(self, whole: Output, tensor: Tensor, layout: Sharded) -> Output:
        """Returns the replica's entries of a replicated tensor; `tensor` tells its sizes."""
        if self.program.num_replicas == 1:
            return whole
        write, rank = self.write, tensor.rank
        assert rank is not None
        if layout.outer == 1:
            return self._own_rows(whole, rank, layout)
        sizes: list[Operand] = [self.size(size) for size in tensor.dims()]
        axis = layout.axis
        block = self.size(layout.batch.length * layout.inner)
        blocks = write.reshape(
            whole, [*sizes[:axis], self.size(layout.outer), block, *sizes[axis + 1 :]]
        )
        own = self._own_rows(blocks, rank + 1, layout.at(axis + 1))
        return write.reshape(own, [*sizes[:axis], self.entries(layout), *sizes[axis + 1 :]])

    def _own_rows(self, whole: Output, rank: int, layout: Sharded) -> Output:
        """Returns the replica's rows along an axis; of no examples a padding row is zeros."""
        write, place, axis = self.write, self.place(layout), layout.axis
        whole = self.never_empty(whole, rank, axis, layout)
        begin = self._times(self.start(layout), layout.inner)
        count = self._times(place.rows, layout.inner)
        return write.slice_axis(whole, rank, axis, begin, count)

    def never_empty(self, whole: Output, rank: int, axis: int, layout: Sharded) -> Output:
        """Returns a replicated tensor with zeros behind it where a layout's batch has no example.

        Args:
          whole: What padding rows take rows of.
          rank: The number of its axes.
          axis: The axis of the rows.
          layout: The sharding of the batch.
        """
        if not self.program.may_lack_rows(layout.batch):
            return whole
        write, total = self.write, self.place(layout).total
        lacking = self._times(write.subtract(1, write.minimum(total, 1)), layout.inner)
        behind = [0] * (2 * axis + 1) + [lacking] + [0] * (2 * (rank - axis - 1))
        paddings = write.reshape(write.pack(behind, tf.int32), [rank, 2])
        attrs = {"T": whole.dtype, "Tpaddings": tf.int32}
        return self.writer.node("Pad", [whole, paddings], **attrs)[0]

    def sliced_in_three_axes(self, whole: Output, layout: Sharded) -> Output:
        """Returns the replica's entries of a replicated tensor whose rank tracing may not know."""
        merged, before, after = self._in_three_axes(whole, layout.axis, self.size(layout.length))
        tensor = Tensor(merged, REPLICATED, [None, layout.length, None])
        own = self.sliced(merged, tensor, layout.at(1))
        return self._in_axes_as_before(own, before, self.entries(layout), after)

    def first_only(self, output: Output) -> Output:
        """Returns a whole value on the first replica and zeros on the others: a partial of it.

        Where partials are wanted each replica has its part of a number: it may go on by itself.
        """
        if self.program.num_replicas == 1:
            return output
        if self.program.communicator.partials_by_rows and output.dtype.is_floating:
            batch = self.program.only_batch
            if batch is not None:
                return self.by_rows(output, Sharded(0, batch))
        if self.program.communicator.keeps_partials and output.dtype.is_floating:
            count = self.write.constant(self.program.num_replicas, output.dtype)
            return self.write.divide(output, count)
        is_first = self.program.flag("zero", self.program.rank)
        return self.write.select(is_first, output, 0)

    def masked(self, output: Output, layout: Sharded, fill: float | bool | str = 0) -> Output:
        """Returns a partial, or a contraction's operand, with `fill` in place of padding rows."""
        if not self.program.may_lack_rows(layout.batch):
            return output
        has_rows = self.program.flag("positive", self.place(layout).count)
        return self.write.select(has_rows, output, self.write.constant(fill, output.dtype))

    def by_rows(self, output: Output, layout: Sharded) -> Output:
        """Returns a replica's partial of the mean by examples: its own value by its share."""
        write, place = self.write, self.place(layout)
        total = write.maximum(place.total, write.constant(1))
        weight = write.divide(
            write.cast(place.count, output.dtype), write.cast(total, output.dtype)
        )
        return write.multiply(output, weight)

    def filled(self, output: Output, layout: Sharded, fill: float | bool | str = 0) -> Output:
        """Returns a padding row with `fill` in its place, where the whole batch has no example.

        Any other padding row is a copy of an example, and takes what examples take.
        """
        if not self.program.may_lack_rows(layout.batch):
            return output
        has_examples = self.program.flag("positive", self.place(layout).total)
        return self.write.select(has_examples, output, self.write.constant(fill, output.dtype))

    def to(self, tensor: Tensor, layout: Layout, why: str = "") -> Output:
        """Returns what a replica holds of a tensor in another layout, one that `join` gave.

        Raises:
          Waiting: The tensor is a partial that must be summed first.
        """
        if tensor.layout == layout:
            return tensor.local
        if isinstance(layout, Sharded):
            return self.part(tensor, layout, why)
        if layout == PARTIAL:
            return self.first_only(self.replicated(tensor, why))
        if layout == LOCAL:
            return tensor.local if tensor.sharded is None else self.replicated(tensor, why)
        if isinstance(layout, Listed):
            return list_to(self, tensor, layout, why)
        return self.replicated(tensor, why)
