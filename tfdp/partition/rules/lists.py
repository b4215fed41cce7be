"""Tensor lists and optionals: each replica has a list of its shards of the elements.

In optionals branches keep for their gradients what only one of them has made.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Layout, Listed, Sharded
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.sizes import is_size
from tfdp.partition.tensors import Tensor


@rule("EmptyTensorList", "TensorListReserve", always=True)
def new(step: Step) -> Results:
    """Gives a list of nothing yet. Sends nothing."""
    shape, count = step.inputs
    return step.results(
        step.emit([_without_batch(step, shape), step.replicated(count)]), _list_of(step, None)
    )


@rule("TensorListFromTensor", always=True, partial=True)
def from_tensor(step: Step) -> Results:
    """Gives a list of elements in the tensor's layout; those of a sharded axis are gathered."""
    tensor, shape = step.inputs
    element, local = _elements(step, tensor)
    return step.results(step.emit([local, _without_batch(step, shape)]), _list_of(step, element))


@rule("TensorListScatterV2", always=True, partial=True)
def scatter(step: Step) -> Results:
    """Gives a list of elements in the tensor's layout; those of a sharded axis are gathered."""
    tensor, indices, shape, count = step.inputs
    step.require_sums([indices, count])
    element, local = _elements(step, tensor)
    inputs = [local, step.replicated(indices), _without_batch(step, shape), step.replicated(count)]
    return step.results(step.emit(inputs), _list_of(step, element))


@rule("TensorListScatterIntoExistingList", partial=True)
def scatter_into(step: Step) -> Results:
    """Keeps the list's layout, which the tensor's elements are made to have; else as `scatter`."""
    handle, tensor, indices = step.inputs
    step.require_sums([indices])
    assert isinstance(handle.layout, Listed)
    before, own = handle.layout.element, handle.local
    if before is None:
        element, local = _elements(step, tensor)
    else:
        element, own, local = _made_to_fit(step, handle, tensor, _stacked(before))
    inputs = [own, local, step.replicated(indices)]
    return step.results(step.emit(inputs), _list_of(step, element))


@rule("TensorListStack", "TensorListGather")
def stack(step: Step) -> Results:
    """Gives a tensor with the elements' layout, one axis further. Sends nothing."""
    handle, *indices, shape = step.inputs
    element = _element(handle)
    whole = [step.replicated(each) for each in indices]
    outputs = step.emit([handle, *whole, _shape_of(step, shape, element)])
    return step.results(outputs, _stacked(element))


@rule("TensorListGetItem")
def get_item(step: Step) -> Results:
    """Gives a tensor with the elements' layout. Sends nothing."""
    handle, index, shape = step.inputs
    element = _element(handle)
    outputs = step.emit([handle, step.replicated(index), _shape_of(step, shape, element)])
    return step.results(outputs, element, entries=[handle.entries])


@rule("TensorListPopBack")
def pop_back(step: Step) -> Results:
    """Gives the list without its last element, and a tensor with its layout. Sends nothing."""
    handle, shape = step.inputs
    element = _element(handle)
    outputs = step.emit([handle, _shape_of(step, shape, element)])
    entries = [handle.entries, handle.entries]
    return step.results(outputs, [handle.layout, element], entries=entries)


@rule("TensorListSetItem", "TensorListPushBack", partial=True)
def set_item(step: Step) -> Results:
    """Keeps the list's layout, which is the first element's; another is made to have it.

    What is known of the values of all elements that are pushed, such as the shapes that the
    gradient of a loop takes out again, is known of the list. A list whose elements are set by
    number may have others, which are zeros.
    """
    handle, *place, item = step.inputs
    if step.op.type == "TensorListSetItem":
        handle, *place, item = step.inputs[:3]
    step.require_sums(place)
    assert isinstance(handle.layout, Listed)
    before = handle.layout.element
    if before is None or _begins_anew(step, handle, item):
        element, own, local = item.layout, handle.local, item.local
    else:
        element, own, local = _made_to_fit(step, handle, item, before)
    inputs = [own, *(step.replicated(each) for each in place), local]
    results = step.results(step.emit(inputs), _list_of(step, element))
    if step.op.type == "TensorListPushBack" and (before is None or _same(handle, item)):
        results[0].entries = item.entries
    return results


@rule("TensorListLength", "TensorListElementShape")
def length(step: Step) -> Results:
    """Gives what each replica's list says; of shapes nothing is known. Sends nothing."""
    return step.results(step.emit(step.inputs), REPLICATED)


@rule("TensorListResize")
def resize(step: Step) -> Results:
    """Keeps the layout. Sends nothing."""
    handle, size = step.inputs
    return step.results(step.emit([handle, step.replicated(size)]), handle.layout)


@rule("TensorListConcatV2")
def concat(step: Step) -> Results:
    """Gives elements that are whole, or sharded along another axis, in their layout.

    Elements that are sharded along the axis along which they are joined are gathered.
    """
    handle, shape, leading = step.inputs
    element = _element(handle)
    if isinstance(element, Sharded) and element.axis == 0:
        return _concat_rows(step, handle, element)
    outputs = step.emit([handle, _shape_of(step, shape, element), step.replicated(leading)])
    return step.results(outputs, [element, REPLICATED])


def _concat_rows(step: Step, handle: Tensor, element: Sharded) -> Results:
    """Stacks the elements, gathers their rows, and joins them."""
    write = step.write
    (stacked,) = step.writer.node(
        "TensorListStack",
        [handle.local, write.constant(-1)],
        element_dtype=step.op.outputs[0].dtype,
        num_elements=-1,
    )
    sizes = write.shape(stacked)
    count, others = write.element(sizes, 0), write.slice(sizes, [2], [-1])
    width = write.reduce("Prod", others, [0])
    flat = write.reshape(stacked, [count, step.entries(element), width])
    rows = Tensor(flat, _stacked(element), [None, element.length, None])
    whole = step.replicated(rows, "elements of a list are joined along the batch")
    length = write.multiply(count, step.size(element.length))
    joined = write.reshape(whole, write.concat([write.pack([length], tf.int32), others], 0))
    (lengths,) = step.writer.node(
        "Fill",
        [write.pack([count], tf.int32), step.size(element.length)],
        T=tf.int32,
        index_type=tf.int32,
    )
    return step.results([joined, write.cast(lengths, step.op.outputs[1].dtype)], REPLICATED)


def _list_of(step: Step, element: Layout | None) -> Listed:
    return Listed(element, tf.as_dtype(step.op.attr("element_dtype")))


def _element(handle: Tensor) -> Layout:
    assert isinstance(handle.layout, Listed)
    return handle.layout.element or REPLICATED


def _elements(step: Step, tensor: Tensor) -> tuple[Layout, Output]:
    """Returns the layout of a tensor's elements along its first axis, and what is local."""
    if tensor.sharded is None:
        return tensor.layout, tensor.local
    if tensor.sharded.is_fixed:  # in a loop each element would be gathered by itself
        step.require_joined([tensor])
        return REPLICATED, step.replicated(tensor, f"{step.op.type} makes a list of parts")
    if tensor.sharded.axis == 0:
        return REPLICATED, step.replicated(tensor, f"{step.op.type} takes examples one by one")
    return tensor.sharded.at(tensor.sharded.axis - 1), tensor.local


def _made_to_fit(
    step: Step, handle: Tensor, tensor: Tensor, wanted: Layout
) -> tuple[Layout, Output, Output]:
    """Returns the layout of a list's elements, the list, and what is put into it, made to have it.

    Where what is put in cannot be sharded as the elements are, all are replicated.
    """
    assert isinstance(handle.layout, Listed)
    before = handle.layout.element
    if isinstance(wanted, Sharded) and tensor.layout != wanted and not _fits(tensor, wanted):
        before = wanted = REPLICATED
    if wanted == REPLICATED and tensor.layout == PARTIAL:
        if handle.variables:  # summed once, after the loop
            before = wanted = PARTIAL
        else:
            step.require_sums([tensor])
    assert before is not None
    own = step.to(handle, _list_of(step, before), "an element of another layout is put into a list")
    return before, own, step.to(tensor, wanted)


def _begins_anew(step: Step, handle: Tensor, item: Tensor) -> bool:
    """Returns whether optionals are what a round of a loop puts first into a list.

    The loop's body is written again until a list begins as it ends.
    """
    is_optional = isinstance(item.layout, Listed) and item.layout.kinds is not None
    return is_optional and bool(handle.variables) and handle.local in step.writer.arguments


def _stacked(element: Layout) -> Layout:
    return element.at(element.axis + 1) if isinstance(element, Sharded) else element


def _fits(item: Tensor, layout: Sharded) -> bool:
    return (
        item.layout == REPLICATED
        and (item.rank or 0) > layout.axis
        and (item.dim(layout.axis) == layout.length)
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return (
        a.entries is not None
        and b.entries is not None
        and bool(a.entries.shape == b.entries.shape and (a.entries == b.entries).all())
    )


def _without_batch(step: Step, shape: Tensor) -> Output:
    """Returns the shape of elements of any layout: sizes that may be of a batch are left open."""
    sizes = shape.sizes()
    if sizes is None:
        constant = shape.constant()
        return step.write.constant(-1 if constant is None else constant, shape.dtype)
    known: Sequence[Any] = [-1 if _may_be_sharded(step, size) else size for size in sizes]
    return step.write.constant(known, shape.dtype)


def _may_be_sharded(step: Step, size: Any) -> bool:
    """Returns whether a size may be a multiple of a batch's length, which may be a number, too."""
    lengths = [batch.length for batch in step.program.batches]
    return not isinstance(size, int) or any(
        isinstance(length, int) and size % max(length, 1) == 0 for length in lengths
    )


def _shape_of(step: Step, shape: Tensor, element: Layout) -> Output:
    """Returns the shape that an element has on the replica, as far as it is known."""
    sizes = shape.sizes()
    if sizes is None:
        constant = shape.constant()
        return step.write.constant(-1 if constant is None else constant, shape.dtype)
    known: list[Any] = [
        size if isinstance(size, int) else step.size(size) if is_size(size) else -1
        for size in sizes
    ]
    if isinstance(element, Sharded) and known[element.axis] != -1:
        known[element.axis] = step.entries(element)
    return step.write.pack(known, shape.dtype)


@rule("OptionalNone", always=True)
def none(step: Step) -> Results:
    """Gives an optional of nothing. Sends nothing."""
    return step.results(step.emit([]), Listed(None, tf.variant, kinds=()))


@rule("OptionalFromValue", always=True)
def from_value(step: Step) -> Results:
    """Gives an optional of a tensor in its layout. Sends nothing; several tensors are whole.

    So is one where what branches keep could not be told apart: see `ProgramBuilder.keeps_whole`.
    """
    if len(step.inputs) != 1:
        return None
    (value,) = step.inputs
    if step.program.keeps_whole:
        value = _whole(step, value)
    kind = value.dtype, step.op.inputs[0].shape.rank, value.layout
    layout = Listed(None, tf.variant, kinds=(kind,))
    return step.results(step.emit([value]), layout, entries=[value.entries])


@rule("OptionalGetValue")
def get_value(step: Step) -> Results:
    """Gives the tensor in its layout. Sends nothing."""
    (optional,) = step.inputs
    first, *others = step.op.outputs
    if not isinstance(optional.layout, Listed) or others:
        return None
    layout = optional.layout.value(first.dtype, first.shape.rank) or REPLICATED
    outputs = step.emit([optional], output_shapes=[tf.TensorShape(None)])  # of the replica's part
    return step.results(outputs, layout, entries=[optional.entries])


@rule("OptionalHasValue")
def has_value(step: Step) -> Results:
    """Gives what each replica's optional says. Sends nothing."""
    return step.results(step.emit(step.inputs), REPLICATED)


def _whole(step: Step, value: Tensor) -> Tensor:
    """Returns a value that is sharded, or a list of such, whole."""
    why = "branches keep it with what cannot be told from it"
    if isinstance(value.layout, Listed) and not value.layout.is_whole:
        layout = Listed(REPLICATED, value.layout.dtype)
        return Tensor(step.to(value, layout, why), layout, None, value.entries)
    if value.sharded is None:
        return value
    step.require_joined([value])
    step.note_gathered(why)
    return Tensor(step.replicated(value, why), REPLICATED, value.shape, value.entries)
