"""Lists and optionals in other layouts of what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tfdp.partition.layouts import LOCAL, PARTIAL, Layout, Listed, Sharded
from tfdp.partition.tensors import Tensor
from tfdp.partition.writing import Called, Output, Writer, unique_name

if TYPE_CHECKING:
    from tfdp.partition.conversions import Conversions


def list_to(convert: Conversions, tensor: Tensor, layout: Listed, why: str) -> Output:
    """Returns a list in another layout of elements: stacked, they are made to have it.

    Raises:
      ValueError: Its elements are lists, or each replica's own.
    """
    own, wanted = tensor.layout, layout.element
    if not isinstance(own, Listed):
        raise ValueError(f"a {own} tensor cannot become a {layout}")
    if own.kinds is not None:
        return _optional_to(convert, tensor.local, own, layout, why)
    stays = wanted == LOCAL and not isinstance(own.element, Sharded)
    if stays or own.element in (None, wanted):
        return tensor.local
    if own.element == LOCAL or own.dtype == tf.variant:
        raise ValueError(f"a {own} cannot become a {layout}")
    attrs = {"element_dtype": own.dtype}
    (stacked,) = convert.writer.node(
        "TensorListStack", [tensor.local, convert.write.constant(-1)], num_elements=-1, **attrs
    )
    found = _element_to(convert, stacked, _stacked(own.element), _stacked(wanted), why)
    shape = convert.write.slice(convert.write.shape(found), [1], [-1])
    (made,) = convert.writer.node(
        "TensorListFromTensor", [found, shape], shape_type=tf.int32, **attrs
    )
    return made


def _optional_to(
    convert: Conversions, optional: Output, own: Listed, layout: Listed, why: str
) -> Output:
    """Returns an optional of its value in another layout, if it has one, on all replicas.

    Raises:
      ValueError: It may have values of several kinds.
    """
    changed = [each for each in own.kinds or () if each not in (layout.kinds or ())]
    if not changed:
        return optional
    if len(own.kinds or ()) > 1:
        raise ValueError(f"a {own} cannot become a {layout}")
    ((dtype, rank, element),) = changed
    some, none = (Writer(unique_name("branch"), convert.writer) for _ in range(2))
    inside = type(convert)(convert.program, some)
    inside.op = convert.op
    attrs = {"output_types": [dtype], "output_shapes": [tf.TensorShape(None)]}
    (value,) = some.node("OptionalGetValue", [optional], **attrs)
    wanted = layout.value(dtype, rank)
    if isinstance(element, Listed) and wanted is not None:
        found = inside.to(Tensor(value, element, None), wanted, why)
    else:
        found = _element_to(inside, value, element, wanted, why)
    made = some.node("OptionalFromValue", [found], Toutput_types=[dtype])
    captures = list(some.captures)
    convert.program.functions += [
        some.finish(made, convert.program.effects(some, []), captures),
        none.finish(none.node("OptionalNone", []), (), captures),
    ]
    (has_value,) = convert.writer.node("OptionalHasValue", [optional])

    def write() -> list[Output]:
        return convert.writer.node(
            "If",
            [has_value, *captures],
            Tcond=tf.bool,
            Tin=[each.dtype for each in captures],
            Tout=[tf.variant],
            then_branch=Called(some.name),
            else_branch=Called(none.name),
            output_shapes=[],
            _lower_using_switch_merge=True,
        )

    communicates = convert.program.communicates(some)
    return (convert.program.in_order(convert.writer, write) if communicates else write())[0]


def _element_to(
    convert: Conversions, value: Output, element: Layout | None, wanted: Layout | None, why: str
) -> Output:
    """Returns what a list or an optional holds in another layout; no other sum waits for it."""
    if isinstance(element, Sharded):
        value = convert.whole(Tensor(value, element, None), why)
    elif element == PARTIAL:
        summand = Tensor(value, PARTIAL, None)
        convert.sum([summand], why)
        assert summand.whole is not None
        value = summand.whole
    if wanted == PARTIAL:
        return convert.first_only(value)
    return convert.sliced_in_three_axes(value, wanted) if isinstance(wanted, Sharded) else value


def _stacked(element: Layout | None) -> Layout | None:
    return element.at(element.axis + 1) if isinstance(element, Sharded) else element
