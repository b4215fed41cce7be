"""Ragged tensors of which each replica has the values of its rows.

The splits are whole on all replicas, so that each knows how wide the whole batch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdp.partition.layouts import Sharded
from tfdp.partition.row_names import RowNames, splits_of
from tfdp.partition.rules.joining import fits, part
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.sizes import is_size
from tfdp.partition.tensors import Tensor
from tfdp.partition.writing import Output


@rule("RaggedTensorToTensor")
def to_dense(step: Step) -> Results:
    """Gives a replica's rows, as wide as the whole batch's widest. Sends nothing, unless values are
    cut otherwise than the rows are.
    """
    shape, values, default, *splits = step.inputs
    names = _names(step, splits)
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
    count = step.place(entries).count
    own = write.slice_axis(part(step, values, entries), values.rank, 0, 0, count)
    given = [write.pack(numbers, shape.dtype), own, step.whole(default)]
    return step.results(step.emit([*given, *_local_splits(step, splits, rows)]), rows)


def _names(step: Step, splits: Sequence[Tensor]) -> RowNames | None:
    """Returns what the splits tell; None: they are not those of a tensor that is cut by rows."""
    names = splits[0].names
    if names is None or set(step.op.attr("row_partition_types")) != {b"ROW_SPLITS"}:
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
    whole = step.whole(splits)
    rows = write.subtract(write.element(write.shape(whole), 0), 1)
    ends, begins = write.slice(whole, [1], [-1]), write.slice(whole, [0], [rows])
    return write.maximum(write.reduce("Max", write.subtract(ends, begins), [0]), 0)


def _local_splits(step: Step, splits: Sequence[Tensor], rows: Sharded) -> list[Output]:
    """Returns the splits of a replica's rows; a stand-in is a row without entries."""
    write = step.write
    begin, count = step.start(rows), step.entries(rows)
    has_rows = write.minimum(step.place(rows).count, 1)
    found = []
    for level in splits:
        whole = step.whole(level)
        # A batch without examples has one split, and a stand-in needs two.
        whole = write.concat([whole, write.reduce("Max", whole, [0], keep=True)], 0)
        own = write.slice(whole, [begin], [write.add(count, 1)])
        first = write.element(own, 0)
        own = write.multiply(write.subtract(own, first), write.cast(has_rows, level.dtype))
        begin, count = first, write.reduce("Max", own, [0])
        found.append(own)
    return found
