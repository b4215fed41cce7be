"""Lists and optionals in other layouts of what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdp.partition.emit.writer import Called, Output, Writer, unique_name
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Layout, Listed, Sharded
from tfdp.partition.tensors import Tensor

if TYPE_CHECKING:
    from tfdp.partition.redistribute import Redistribution


class MixedError(ValueError):
    """What holds values of several kinds, of which one must be gathered, cannot tell them apart.

    Branches around it are written again, and what they keep is whole from the beginning: see
    `ProgramBuilder.keeps_whole`.
    """


def list_to(convert: Redistribution, tensor: Tensor, layout: Listed, why: str) -> Output:
    """Returns a list or an optional in another layout of what it holds, if it holds anything.

    Raises:
      MixedError: It holds lists, or may hold values of several kinds.
      ValueError: It is neither, or its elements are each replica's own.
    """
    own, wanted = tensor.layout, layout.element
    if not isinstance(own, Listed):
        raise ValueError(f"a {own} tensor cannot become a {layout}")
    if own.is_whole and layout.is_whole:
        return tensor.local
    if own.kinds is not None:
        return _optional_to(convert, tensor.local, own, layout, why)
    stays = wanted == LOCAL and not isinstance(own.element, Sharded)
    if stays or own.element in (None, wanted):
        return tensor.local
    if own.dtype == tf.variant:
        raise MixedError(f"a {own} cannot become a {layout}")
    if own.element == LOCAL:
        raise ValueError(f"a {own} cannot become a {layout}")
    attrs = {"element_dtype": own.dtype}

    def changed(inside: Redistribution) -> Output:
        (stacked,) = inside.writer.node(
            "TensorListStack", [tensor.local, inside.write.constant(-1)], num_elements=-1, **attrs
        )
        found = _element_to(inside, stacked, _stacked(own.element), _stacked(wanted), why)
        shape = inside.write.slice(inside.write.shape(found), [1], [-1])
        (made,) = inside.writer.node(
            "TensorListFromTensor", [found, shape], shape_type=tf.int32, **attrs
        )
        return made

    (length,) = convert.writer.node("TensorListLength", [tensor.local])
    has_elements = convert.write.greater(length, 0)  # an empty list does not say of which shape
    return _where(convert, has_elements, changed, lambda _: tensor.local)


def _optional_to(
    convert: Redistribution, optional: Output, own: Listed, layout: Listed, why: str
) -> Output:
    """Returns an optional of its value in another layout, if it has one, on all replicas."""
    wanted = [layout.value(dtype, rank) for dtype, rank, _ in own.kinds or ()]
    kinds = [
        (dtype, element, other)
        for (dtype, _, element), other in zip(own.kinds or (), wanted, strict=True)
        if not _is_held_as(element, other)
    ]
    if not kinds:
        return optional
    if len(wanted) > 1:
        raise MixedError(f"a {own} cannot become a {layout}")
    ((dtype, element, other),) = kinds

    def changed(inside: Redistribution) -> Output:
        attrs = {"output_types": [dtype], "output_shapes": [tf.TensorShape(None)]}
        (value,) = inside.writer.node("OptionalGetValue", [optional], **attrs)
        if isinstance(element, Listed):
            whole = Listed(REPLICATED, element.dtype)
            found = inside.to(Tensor(value, element, None), other or whole, why)
        else:
            found = _element_to(inside, value, element, other, why)
        (made,) = inside.writer.node("OptionalFromValue", [found], Toutput_types=[dtype])
        return made

    (has_value,) = convert.writer.node("OptionalHasValue", [optional])
    return _where(convert, has_value, changed, lambda _: optional)


def _is_held_as(own: Layout, wanted: Layout | None) -> bool:
    """Returns whether a value in a layout can be taken for one in another; None: for a whole."""
    if isinstance(own, Listed) and own.is_whole:
        return wanted is None or (isinstance(wanted, Listed) and wanted.is_whole)
    return own == (wanted or REPLICATED) or (own == REPLICATED and wanted == LOCAL)


def _where(
    convert: Redistribution,
    condition: Output,
    some: Callable[[Redistribution], Output],
    none: Callable[[Redistribution], Output],
) -> Output:
    """Writes a branch that all replicas take alike, and returns the list or optional it gives."""
    made = []
    for branch in (some, none):
        inside = convert.within(Writer(unique_name("branch"), convert.writer))
        made.append((inside.writer, inside.writer.use(branch(inside))))
    captures = list(dict.fromkeys(each for writer, _ in made for each in writer.captures))
    called = []
    for writer, output in made:
        effects = convert.program.effects(writer, [])
        convert.program.functions.append(writer.finish([output], effects, captures))
        called.append(Called(writer.name))

    def write() -> list[Output]:
        return convert.writer.node(
            "If",
            [condition, *captures],
            Tcond=tf.bool,
            Tin=[each.dtype for each in captures],
            Tout=[tf.variant],
            then_branch=called[0],
            else_branch=called[1],
            output_shapes=[],
            _lower_using_switch_merge=True,
        )

    communicates = any(convert.program.communicates(writer) for writer, _ in made)
    return (convert.program.in_order(convert.writer, write) if communicates else write())[0]


def _element_to(
    convert: Redistribution, value: Output, element: Layout | None, wanted: Layout | None, why: str
) -> Output:
    """Returns what a list or an optional holds in another layout; no other sum waits for it."""
    if isinstance(element, Sharded):
        value = convert.replicated(Tensor(value, element, None), why)
    elif element == PARTIAL:
        partial = Tensor(value, PARTIAL, None)
        convert.sum([partial], why)
        assert partial.replicated is not None
        value = partial.replicated
    if wanted == PARTIAL:
        return convert.first_only(value)
    return convert.sliced_in_three_axes(value, wanted) if isinstance(wanted, Sharded) else value


def _stacked(element: Layout | None) -> Layout | None:
    return element.at(element.axis + 1) if isinstance(element, Sharded) else element
