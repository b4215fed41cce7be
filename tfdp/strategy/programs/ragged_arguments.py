"""Ragged and sparse tensors of which each replica has its rows.

Their values are cut where the rows are. What tells which are whose is whole on all replicas: the
splits of ragged rows are few numbers, and a sparse tensor's indices count rows from the batch's
first.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.strategy.programs.argument_sharding import Irregular
from tfdp.strategy.programs.program_context import ProgramContext


def components(
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
        stand-ins. None: a part has no others.
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
