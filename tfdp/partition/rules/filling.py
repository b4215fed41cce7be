"""Operations that repeat or count up to sizes: of those of a batch, a replica makes its own part.

They are asked where all inputs are whole, too: zeros for each example, say, need not be made for
all examples. The whole is known as well, and made if something asks for it: nothing is sent.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.sizes import Batch, Size, divided, is_size
from tfdp.partition.tensors import Tensor


@rule("Fill", "Empty", always=True)
def fill(step: Step) -> Results:
    """Gives a shard where one size is a multiple of a batch. Sends nothing."""
    dims, *value = step.inputs
    layout = _like_others(step, layout_of_sizes(dims.sizes()))
    if layout is None or any(tensor.layout != REPLICATED for tensor in step.inputs):
        return None
    return _own(step, [step.shape_with(dims, layout.axis, step.entries(layout)), *value], layout)


@rule("BroadcastTo", always=True)
def broadcast_to(step: Step) -> Results:
    """Keeps the shard; shards a replicated tensor as `Fill` does. Sends nothing."""
    tensor, to = step.inputs
    sizes = to.sizes()
    if tensor.rank is None or sizes is None or to.layout != REPLICATED:
        return None
    shift = len(sizes) - tensor.rank
    if tensor.sharded is not None:
        layout = tensor.sharded.at(tensor.sharded.axis + shift)
        if sizes[layout.axis] != layout.length:
            return None
        own = [tensor.local, step.shape_with(to, layout.axis, step.entries(layout))]
        return step.results(step.emit(own), layout)
    found = _like_others(step, layout_of_sizes(sizes))
    if found is None or tensor.layout != REPLICATED:
        return None
    axis = found.axis - shift
    if axis < 0 or tensor.dim(axis) == 1:
        part = tensor.local
    elif tensor.dim(axis) == found.length:
        part = step.part(tensor, found.at(axis))
    else:
        return None
    return _own(step, [part, step.shape_with(to, found.axis, step.entries(found))], found)


@rule("Tile", always=True)
def tile(step: Step) -> Results:
    """Keeps the shard, in more blocks; shards a replicated tensor as `Fill` does. Sends nothing."""
    tensor, multiples = step.inputs
    times = multiples.sizes()
    if tensor.rank is None or times is None or multiples.layout != REPLICATED:
        return None
    if tensor.sharded is not None:
        layout = tensor.sharded
        outer: Any = layout.outer * times[layout.axis]
        if not is_size(outer) or (isinstance(outer, int) and outer < 1):
            return None
        layout = dataclasses.replace(layout, outer=outer)
        return step.results(step.emit(step.inputs), layout)
    copies = _like_others(step, layout_of_sizes(times))
    if copies is None or tensor.layout != REPLICATED or tensor.dim(copies.axis) == 0:
        return None
    own = step.shape_with(multiples, copies.axis, step.entries(copies))
    inner = copies.inner * tensor.dim(copies.axis)
    return _own(step, [tensor.local, own], dataclasses.replace(copies, inner=inner))


@rule("Range", always=True)
def count(step: Step) -> Results:
    """Gives a shard where the number of entries is a multiple of a batch. Sends nothing."""
    if any(tensor.layout != REPLICATED for tensor in step.inputs):
        return None
    start, limit, delta = (_number(tensor) for tensor in step.inputs)
    if not (is_size(start) and is_size(limit) and isinstance(delta, int)):
        return None
    layout = layout_of_sizes([divided(limit - start, delta)])
    if layout is None:
        return None
    write, dtype = step.write, step.op.outputs[0].dtype
    by = step.inputs[2].local
    first = write.multiply(step.start(layout), step.size(layout.inner))
    begin = write.add(step.inputs[0].local, write.multiply(write.cast(first, dtype), by))
    length = write.multiply(write.cast(step.entries(layout), dtype), by)
    return _own(step, [begin, write.add(begin, length), by], layout)


def layout_of_sizes(sizes: Sequence[Any] | None) -> Sharded | None:
    """Returns the shard of a tensor one of whose sizes is a multiple of a batch, else None.

    There is none where another size depends on a batch, too: it is not clear which one is meant.
    """
    found = None
    for axis, size in enumerate(sizes or ()):
        batches = _batches(size)
        if not batches:
            continue
        batch = batches.pop()
        factor = divided(size, batch.length)
        if found or batches or factor is None or _batches(factor):
            return None
        if isinstance(factor, int) and factor < 1:
            return None
        found = Sharded(axis, batch, factor)
    return found


def _like_others(step: Step, layout: Sharded | None) -> Sharded | None:
    """Returns the shard with the blocks that the last tensor of the same length had.

    All entries along the axis are alike: in which order examples have them is of no importance.
    """
    if layout is None:
        return None
    return step.program.latest_layouts.get((layout.batch, layout.length), layout).at(layout.axis)


def _batches(size: Any) -> set[Batch]:
    symbols = size.symbols() if isinstance(size, Size) else set()
    return {symbol for symbol in symbols if isinstance(symbol, Batch)}


def _number(tensor: Tensor) -> Any:
    return None if tensor.entries is None else tensor.entries.ravel()[0]


def _own(step: Step, inputs: Sequence[Output | Tensor], layout: Sharded) -> Results:
    """Writes the operation for the replica's part, and for the whole, which may go unused."""
    results = step.results(step.emit(inputs), layout)
    (results[0].replicated,) = step.emit(step.inputs)
    return results
