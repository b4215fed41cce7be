"""Sparse tensors of which each replica has the entries of its rows.

Entries are a batch of their own: the replica's are those in its rows of another one. Results that
have rows are sharded as that one is, and nothing but numbers of entries is sent. Where it is not
certain that entries lie in a replica's own rows, the operation is computed on the gathered batch.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.replica_program import Place
from tfdp.partition.row_ids import INDICES, RowIds, own_rows
from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.operand_layouts import local_rows
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.sizes import Batch
from tfdp.partition.tensors import Tensor


@rule("SparseFillEmptyRows")
def fill_empty_rows(step: Step) -> Results:
    """Fills a replica's rows. Sends how many entries it has then."""
    indices, values, shape, default = step.inputs
    names = _names(indices, values, shape)
    if names is None or step.writer is not step.program.main:
        return None
    write, rows = step.write, Sharded(0, names.batch)
    own = [*_entries(step, indices, values, names), _local_shape(step, shape, rows)]
    filled, texts, were_empty, places = step.emit([*own, step.replicated(default)])
    before = step.place(indices.sharded or rows)
    count = write.element(write.shape(texts), 0)
    has_rows = write.greater(step.place(rows).count, 0)
    entries = Batch(f"{names.entries.name}_filled")
    step.program.places[entries], _ = place_of(step, [write.select(has_rows, count, 0)], count)
    layout = Sharded(0, entries)
    # A replica without entries has a padding row also in what tells where its entries went.
    zeros = write.slice(write.pack([0], tf.int64), [0], [write.subtract(before.rows, before.count)])
    places = write.add(places, write.cast(step.place(layout).start, tf.int64))
    places = write.concat([places, zeros], 0)
    first = write.pack(_first_row(step, indices, rows), tf.int64)
    results = step.results(
        [write.add(filled, first), texts, were_empty, places],
        [layout, layout, rows, indices.sharded or rows],
    )
    results[0].names = RowIds(names.batch, entries, INDICES, complete=True)
    return results


@rule("SparseTensorDenseMatMul")
def sparse_product(step: Step) -> Results:
    """Multiplies a replica's rows: rows of the product, or, transposed, a partial. Sends nothing,
    unless the other operand's rows are sharded otherwise.
    """
    indices, values, shape, other = step.inputs
    names = _names(indices, values, shape)
    if names is None or step.op.attr("adjoint_b"):
        return None
    rows = Sharded(0, names.batch)
    own = [*_entries(step, indices, values, names), _local_shape(step, shape, rows)]
    if not step.op.attr("adjoint_a"):
        return step.results(step.emit([*own, step.replicated(other, "all rows need it")]), rows)
    if not fits(other, rows):
        return None
    return step.results(step.emit([*own, part(step, other, rows)]), PARTIAL)


@rule("SparseToDense")
def to_dense(step: Step) -> Results:
    """Gives a replica's rows. Sends nothing."""
    indices, shape, values, default = step.inputs
    names = _names(indices, values, shape)
    if names is None:
        return None
    rows = Sharded(0, names.batch)
    own, texts = _entries(step, indices, values, names)
    outputs = step.emit([own, _local_shape(step, shape, rows), texts, step.replicated(default)])
    return step.results(outputs, rows)


@rule("Unique")
def unique(step: Step) -> Results:
    """Finds them in the gathered tensor; of where each went a replica keeps its own."""
    (tensor,) = step.inputs
    layout = tensor.sharded
    if layout is None or tensor.rank != 1:
        return None
    reason = "what is in it once must be found in all of it"
    step.note_gathered(reason)
    why = f"Unique is computed on the gathered batch: {reason}"
    found, places = step.emit([step.replicated(tensor, why)])
    whole = Tensor(places, REPLICATED, tensor.shape)
    return step.results([found, step.part(whole, layout)], [REPLICATED, layout])


def own_segments(step: Step) -> Results:
    """Writes sums of segments that are the rows of a batch, none of which is without entries."""
    data, segments, *count = step.inputs
    names = own_rows(segments)
    if names is None or not names.complete or count or not fits(data, Sharded(0, names.entries)):
        return None
    rows = Sharded(0, names.batch)
    own = [part(step, data, Sharded(0, names.entries)), local_rows(step, segments, rows)]
    return step.results(step.emit(own), rows)


def _names(indices: Tensor, values: Tensor, shape: Tensor) -> RowIds | None:
    """Returns what the indices of a sparse tensor tell; None: it is not certain that they do."""
    names = indices.names
    if names is None or names.what != INDICES or indices.layout != Sharded(0, names.entries):
        return None
    is_sharded = values.layout == indices.layout and values.rank == 1
    return names if is_sharded and shape.names == names.of_shape() else None


def _entries(step: Step, indices: Tensor, values: Tensor, names: RowIds) -> list[Output]:
    """Returns a replica's indices, whose rows are counted from its own first, and values."""
    write, rows = step.write, Sharded(0, names.batch)
    count = step.place(Sharded(0, names.entries)).count
    own = write.slice_axis(indices.local, 2, 0, 0, count)
    own = write.subtract(own, write.pack(_first_row(step, indices, rows), tf.int64))
    return [own, write.slice_axis(values.local, 1, 0, 0, count)]


def _first_row(step: Step, indices: Tensor, rows: Sharded) -> list[Any]:
    axes = indices.dims()[1]
    assert isinstance(axes, int)
    return [step.write.cast(step.start(rows), tf.int64), *[0] * (axes - 1)]


def _local_shape(step: Step, shape: Tensor, rows: Sharded) -> Output:
    return step.shape_with(shape, 0, step.entries(rows))


def place_of(step: Step, numbers: Sequence[Output], rows: Output) -> tuple[Place, Sequence[Output]]:
    """Returns a replica's place in a batch of which it knows its own number alone.

    Args:
      step: The operation.
      numbers: How many entries it has, and other numbers that it is to tell, all int32.
      rows: How many entries it holds, a padding row counted.

    Returns:
      The place, and of each of the other numbers a vector of all replicas'.
    """
    write, program = step.write, step.program
    told = write.expand(write.pack(numbers, tf.int32), 0)
    if program.num_replicas > 1:
        spec = tf.TensorSpec([None, len(numbers)], tf.int32)
        collective = program.communicator.gather(spec)
        each = write.pack([1] * program.num_replicas, tf.int32)
        why = "how many entries each replica has is known to all"
        (told,) = program.exchange(step.writer, "gather", collective, [told, each], step.op, why)
    counts, *others = (
        write.reshape(write.slice_axis(told, 2, 1, at, 1), [-1]) for at in range(len(numbers))
    )
    before = write.slice(counts, [0], [program.rank])
    start, total = write.reduce("Sum", before, [0]), write.reduce("Sum", counts, [0])
    return Place(counts, numbers[0], rows, start, total), others
