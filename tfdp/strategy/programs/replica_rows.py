"""The rows of a call's arguments that each local replica is given, and those that it gives."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from tfdp.base import sharding
from tfdp.partition import PARTIAL, Batch, Sharded, host_of
from tfdp.strategy.programs.argument_sharding import ArgumentLayouts, Irregular
from tfdp.strategy.programs.program_context import ProgramContext
from tfdp.strategy.programs.uneven_batches import with_padding_row


class ReplicaRows:
    """The rows of one call, in the graph that is being built.

    Args:
      context: Has the replicas.
      given: The layouts of the arguments.
      arguments: For each argument the whole tensor, or the local replicas' parts.
      counts: Of shares of batches the numbers of each replica's examples, int32, a row for each
        batch; None: they are no shares.
      is_late: Whether the local replica is to compute on none of its examples, a boolean scalar;
        None: it is not.
    """

    def __init__(
        self,
        context: ProgramContext,
        given: ArgumentLayouts,
        arguments: Sequence[Sequence[tf.Tensor]],
        counts: tf.Tensor | None,
        is_late: tf.Tensor | None = None,
    ) -> None:
        self._context, self._given, self._is_late = context, given, is_late
        self._counts = self._counts_of(arguments, counts)
        self._arguments = list(arguments)
        for each in given.sharding.irregular:
            number, layout = given.sharding.batches[each.first], given.layouts[each.first]
            rows = None if counts is None else counts[number]
            parts = [arguments[index] for index in each.arguments]
            components, entries = irregular_components(each, parts, rows, context)
            self._arguments[each.first : each.arguments.stop] = components
            assert isinstance(layout, Sharded)
            self._counts[layout.batch] = entries
        self._padding = self._paddings()

    def of_replica(
        self, index: int, batches: Sequence[Batch]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns what a local replica's program is told of batches, and its arguments.

        It is told its rank and for each batch: how many rows each replica has, how many it has,
        with padding, which of the batch is its first, and how many all have.
        """
        rank = self._context.first_rank + index
        begins = {}
        with tf.device(host_of(self._context.devices[index])):
            told: list[tf.Tensor] = [tf.constant(rank)]
            for batch in batches:
                counts = self._counts[batch]
                count, total = self._kept(counts[rank]), tf.reduce_sum(counts)
                begins[batch] = tf.reduce_sum(counts[:rank])
                told += [counts, count, tf.maximum(count, 1), begins[batch], total]
        own = []
        for layout, parts, padding in zip(
            self._given.layouts, self._arguments, self._padding, strict=True
        ):
            if layout == PARTIAL:
                own.append(parts[index])
            elif not isinstance(layout, Sharded):
                own.append(parts[0])
            elif padding is not None:
                own.append(self._padded(self._rows(parts[index]), padding))
            elif self._given.sharding.of_shares:
                own.append(self._padded(self._rows(parts[index]), parts[index]))
            else:
                count = self._kept(self._counts[layout.batch][rank])
                own.append(self._share(parts[0], begins[layout.batch], count))
        return told, own

    def of_output(self, output: tf.Tensor, layout: Sharded, index: int) -> tf.Tensor:
        """Returns what a local replica gives for its examples, without padding."""
        count = self._counts[layout.batch][self._context.first_rank + index]
        place = [slice(None)] * layout.axis + [slice(0, count * layout.inner)]
        return output[tuple(place)]

    def _counts_of(
        self, arguments: Sequence[Sequence[tf.Tensor]], counts: tf.Tensor | None
    ) -> dict[Batch, tf.Tensor]:
        """Returns of each batch the number of each replica's examples, an int32 vector."""
        if counts is not None:
            with tf.device("CPU:0"):
                return {batch: counts[number] for number, batch in self._given.batches.items()}
        found: dict[Batch, tf.Tensor] = {}
        for layout, parts, in_parts, is_regular in self._given.along(arguments):
            if not (is_regular and isinstance(layout, Sharded)) or layout.batch in found:
                continue
            sizes = [tf.shape(part)[0] for part in parts]
            with tf.device("CPU:0"):
                if in_parts:
                    found[layout.batch] = self._context.of_all(tf.stack(sizes))
                else:
                    count = self._context.num_replicas
                    place = sharding.share_place(sizes[0], count, tf.range(count))
                    found[layout.batch] = place[1]
        return found

    def _paddings(self) -> list[tf.Tensor | None]:
        """Returns of each argument that is given in parts rows of some examples; None: of others.

        A program may fail on other numbers than an example's, such as a division by zeros. A row
        comes from another process if this one has none, and some replica has none.
        """
        found: list[tf.Tensor | None] = []
        is_alone = len(self._context.devices) == self._context.num_replicas
        for layout, parts, in_parts, is_regular in self._given.along(self._arguments):
            hold_some = self._given.sharding.of_shares and is_regular
            if hold_some or not (in_parts and isinstance(layout, Sharded)):
                found.append(None)
                continue
            own = tf.concat([part[:1] for part in parts], 0)
            if not is_alone and self._given.may_be_empty:
                has_some = tf.minimum(self._counts[layout.batch], 1)
                own = tf.cond(
                    tf.reduce_all(has_some > 0),
                    functools.partial(tf.identity, own),
                    functools.partial(self._context.of_all, own),
                )
            found.append(own)
        return found

    def _kept(self, count: tf.Tensor) -> tf.Tensor:
        """Returns how many of so many examples the replica computes on."""
        return count if self._is_late is None else tf.where(self._is_late, 0, count)

    def _rows(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the rows that the replica computes on."""
        return rows if self._is_late is None else rows[: self._kept(tf.shape(rows)[0])]

    def _padded(self, rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        return with_padding_row(rows, others) if self._given.may_be_empty else rows

    def _share(self, whole: tf.Tensor, begin: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns the rows of a replica; one without any has the batch's last as padding."""
        if not self._given.may_be_empty:
            return whole[begin : begin + count]
        rows = tf.maximum(count, 1)
        begin = tf.minimum(begin, tf.maximum(tf.shape(whole)[0] - rows, 0))
        return with_padding_row(whole[begin : begin + rows], whole[:0])


def irregular_components(
    each: Irregular,
    parts: Sequence[Sequence[tf.Tensor]],
    rows: tf.Tensor | None,
    context: ProgramContext,
) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
    """Returns the components of a tensor as programs take them.

    Args:
      each: The tensor.
      parts: Those that the local replicas' parts have.
      rows: How many rows each of all replicas has, int32; others that a part may have are
        padding rows. None: a part has no others.
      context: Asks other processes.

    Returns:
      For each component the local replicas' entries, or a list of the whole one; and how many
      entries each of all replicas has, int32.
    """
    if rows is None:
        own = [tf.shape(part)[0] - 1 for part in parts[1]]
        if not each.depth:
            own = [tf.cast(shape[0], tf.int32) for shape in parts[2]]
        rows = context.of_all(tf.stack(own))
    return _ragged(parts, rows, context) if each.depth else _sparse(parts, rows, context)


def _ragged(
    parts: Sequence[Sequence[tf.Tensor]], rows: tf.Tensor, context: ProgramContext
) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
    values, *levels = parts
    own, wholes = context.own(rows), []
    for splits in levels:
        lengths = [
            each[1 : count + 1] - each[:count] for each, count in zip(splits, own, strict=True)
        ]
        ends = tf.cumsum(context.of_all(tf.concat(lengths, 0)))
        wholes.append([tf.concat([tf.zeros([1], ends.dtype), ends], 0)])
        own = [tf.cast(each[count], tf.int32) for each, count in zip(splits, own, strict=True)]
        rows = context.of_all(tf.stack(own))
    return [[part[:count] for part, count in zip(values, own, strict=True)], *wholes], rows


def _sparse(
    parts: Sequence[Sequence[tf.Tensor]], rows: tf.Tensor, context: ProgramContext
) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
    indices, values, shapes = parts
    own = [
        tf.where(count > 0, tf.shape(part)[0], 0)
        for part, count in zip(values, context.own(rows), strict=True)
    ]
    starts = context.own(tf.cumsum(rows, exclusive=True))
    moved = []
    for part, count, start in zip(indices, own, starts, strict=True):
        first = tf.one_hot(0, tf.shape(part)[1], tf.cast(start, part.dtype), dtype=part.dtype)
        moved.append(part[:count] + first)
    rest = tf.reduce_max(tf.stack(shapes), 0)[1:]
    shape = tf.concat([[tf.cast(tf.reduce_sum(rows), rest.dtype)], rest], 0)
    entries = [part[:count] for part, count in zip(values, own, strict=True)]
    return [moved, entries, [shape]], context.of_all(tf.stack(own))
