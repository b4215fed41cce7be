"""Ragged tensors of which each replica has the values of its rows.

The splits are whole on all replicas, so that each knows how wide the whole batch is. Where numbers
of rows stand for splits each replica has those of its own values.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.row_ids import INDICES, RowIds, own_rows, splits_of
from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.operand_layouts import local_rows
from tfdp.partition.rules.reductions import meeting
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.sparse import place_of
from tfdp.partition.shape_inference.known_shapes import known_scalar
from tfdp.partition.sizes import UNKNOWN, Batch, is_size
from tfdp.partition.tensors import Tensor, array_of


@rule("RaggedTensorToTensor")
def to_dense(step: Step) -> Results:
    """Gives a replica's rows, as wide as the whole batch's widest. Sends nothing, unless values are
    sharded otherwise than the rows are.
    """
    shape, values, default, *splits = step.inputs
    if step.op.attr("row_partition_types") == [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]:
        return _to_dense_by_numbers(step)
    are_splits = set(step.op.attr("row_partition_types")) == {b"ROW_SPLITS"}
    names = _names(splits) if are_splits else None
    if names is None or values.rank is None:
        return None
    rows, entries = Sharded(0, names.batch), Sharded(0, names.entries)
    sizes = _sizes(shape, len(splits) + values.rank)
    if sizes is None or sizes[0] not in (-1, rows.length) or not fits(values, entries):
        return None
    write = step.write
    widths = [
        _widest(step, level) if size == -1 else size
        for level, size in zip(splits, sizes[1:], strict=False)
    ]
    local = [step.entries(rows), *widths, *sizes[1 + len(splits) :]]
    numbers = [each if isinstance(each, (int, Output)) else step.size(each) for each in local]
    own = _own_entries(step, values, entries)
    given = [write.pack(numbers, shape.dtype), own, step.replicated(default)]
    return step.results(step.emit([*given, *_local_splits(step, splits, rows)]), rows)


def _to_dense_by_numbers(step: Step) -> Results:
    """Gives a replica's rows. Sends the number of entries in its widest, if that is the width."""
    shape, values, default, count, numbers = step.inputs
    names = own_rows(numbers)
    if names is None or values.rank is None or known_scalar(count) != names.batch.length:
        return None
    rows, entries = Sharded(0, names.batch), Sharded(0, names.entries)
    sizes = _sizes(shape, 1 + values.rank)
    if sizes is None or sizes[0] not in (-1, rows.length) or not fits(values, entries):
        return None
    write = step.write
    own_numbers = write.slice(local_rows(step, numbers, rows), [0], [step.place(entries).count])
    own = [
        *(_own_entries(step, values, entries), step.replicated(default)),
        *(write.cast(step.entries(rows), count.dtype), own_numbers),
    ]
    local = [each if isinstance(each, int) else step.size(each) for each in sizes]
    local[0] = step.entries(rows)
    if sizes[1] == -1:
        (narrow,) = step.emit([write.pack(local, shape.dtype), *own])
        width = write.element(write.shape(narrow), 1)
        local[1] = meeting(step, width, "Max", [], "the widest row of all replicas")
    return step.results(step.emit([write.pack(local, shape.dtype), *own]), rows)


@rule("RaggedBincount")
def counts(step: Step) -> Results:
    """Counts the values of a replica's rows. Sends nothing."""
    splits, values, size, weights = step.inputs
    names = _names([splits])
    if names is None or values.rank != 1:
        return None
    rows, entries = Sharded(0, names.batch), Sharded(0, names.entries)
    are_weighted = weights.shape != [0]
    if not fits(values, entries) or (are_weighted and not fits(weights, entries)):
        return None
    own = [
        *_local_splits(step, [splits], rows),
        *(_own_entries(step, values, entries), step.replicated(size)),
        _own_entries(step, weights, entries) if are_weighted else step.replicated(weights),
    ]
    return step.results(step.emit(own), rows)


@rule("StringSplitV2")
def words(step: Step) -> Results:
    """Splits a replica's texts. Sends how many words it has then, and how many the longest has."""
    texts, separator = step.inputs
    rows = texts.sharded
    if rows is None or rows != Sharded(0, rows.batch) or texts.rank != 1:
        return None
    if separator.layout != REPLICATED or step.writer is not step.program.main:
        return None
    write = step.write
    indices, found, shape = step.emit(step.inputs)
    has_rows = write.greater(step.place(rows).count, 0)
    count = write.select(has_rows, write.element(write.shape(found), 0), 0)
    longest = write.select(has_rows, write.cast(write.element(shape, 1), tf.int32), 0)
    held = write.maximum(count, 1)  # a replica without words has one that stands for them
    entries = Batch(f"{rows.batch.name}_words")
    place, (widths,) = place_of(step, [count, longest], held)
    step.program.places[entries] = place
    step.program.entries.add(entries)
    found = write.concat([found, write.constant([""], tf.string)], 0)
    indices = write.concat([indices, write.constant([[0, 0]], tf.int64)], 0)
    first = write.pack([write.cast(step.start(rows), tf.int64), 0], tf.int64)
    outputs = [
        write.add(write.slice(indices, [0, 0], [held, 2]), first),
        write.slice(found, [0], [held]),
        write.pack([step.size(rows.length), write.reduce("Max", widths, [0])], tf.int64),
    ]
    layout = Sharded(0, entries)
    sizes = array_of([rows.length, UNKNOWN])
    results = step.results(outputs, [layout, layout, REPLICATED], None, [None, None, sizes])
    results[0].names = RowIds(rows.batch, entries, INDICES)
    results[2].names = results[0].names.of_shape()
    return results


def _own_entries(step: Step, values: Tensor, entries: Sharded) -> Output:
    """Returns a replica's values, without one that stands for none."""
    assert values.rank is not None
    count = step.place(entries).count
    return step.write.slice_axis(part(step, values, entries), values.rank, 0, 0, count)


def _names(splits: Sequence[Tensor]) -> RowIds | None:
    """Returns what the splits tell; None: they are of no tensor that is sharded by rows."""
    names = splits[0].names
    if names is None:
        return None
    depth = len(splits)
    all_levels = [splits_of(names.batch, names.entries, level, depth) for level in range(depth)]
    return names if [each.names for each in splits] == all_levels else None


def _sizes(shape: Tensor, rank: int) -> list[Any] | None:
    """Returns the sizes that are asked for, -1 where any is right; None: they are not known."""
    if shape.entries is not None and shape.entries.ndim == 0:
        return [-1] * rank  # nothing is asked for
    sizes = shape.sizes()
    return sizes if sizes is not None and all(map(is_size, sizes)) else None


def _widest(step: Step, splits: Tensor) -> Output:
    """Returns the largest number of entries that a row of the whole batch has."""
    write = step.write
    whole = step.replicated(splits)
    rows = write.subtract(write.element(write.shape(whole), 0), 1)
    ends, begins = write.slice(whole, [1], [-1]), write.slice(whole, [0], [rows])
    return write.maximum(write.reduce("Max", write.subtract(ends, begins), [0]), 0)


def _local_splits(step: Step, splits: Sequence[Tensor], rows: Sharded) -> list[Output]:
    """Returns the splits of a replica's rows; a padding row is a row without entries."""
    write = step.write
    begin, count = step.start(rows), step.entries(rows)
    has_rows = write.minimum(step.place(rows).count, 1)
    found = []
    for level in splits:
        whole = step.replicated(level)
        # A batch without examples has one split, and a padding row needs two.
        whole = write.concat([whole, write.reduce("Max", whole, [0], keep=True)], 0)
        own = write.slice(whole, [begin], [write.add(count, 1)])
        first = write.element(own, 0)
        own = write.multiply(write.subtract(own, first), write.cast(has_rows, level.dtype))
        begin, count = first, write.reduce("Max", own, [0])
        found.append(own)
    return found
