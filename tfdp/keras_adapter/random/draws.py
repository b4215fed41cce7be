"""The test whether random numbers are drawn for each example, or once for all examples.

A draw is for each example if its first size is the number of examples, as the traced program counts
them. A share of dense tensors is traced as one of any length (`training.sharing`). In eager steps,
and beside sparse and ragged tensors, a size that equals the share's number of examples may be that
of a weight as well; then the end of the step checks what the numbers were combined with.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.layers.outputs import Claims
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.layout_rules import ELEMENTWISE, Layout
from tfdp.keras_adapter.tracing.layouts import Layouts
from tfdp.keras_adapter.tracing.origins import READS, Origin, origins
from tfdp.keras_adapter.tracing.walk import Node, Place, Walk, is_result_elsewhere, users

# The operations whose outputs hold the numbers of their inputs.
_HOLDS = (*ELEMENTWISE, "Reshape", "Squeeze", "ExpandDims", "StridedSlice", "Transpose")
_OUT_OF_ONE = (
    "train in a graph, with dense features, or in batches of two examples or more for each replica"
)
_WITH_KERNELS = ("MatMul", "Conv", "Depthwise")


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random numbers whose fixed shape does not tell whether they are for each example.

    Attributes:
      value: The numbers.
      alike: Whether they were drawn the same on all replicas.
    """

    value: Any
    alike: bool


def layout_of(layouts: Layouts, rows: int | None, shape: Any) -> Layout:
    """Returns the layout of the examples in a draw of a shape.

    Args:
      layouts: The layouts of the step's tensors.
      rows: The number of the replica's rows; None where tracing does not know it.
      shape: A tensor, or a sequence of numbers and scalars.

    Returns:
      ROWS or FITS if the first axis is that of the examples, FREE if the draw is for all examples
      alike, SPREAD if the examples are on a later axis, and UNKNOWN if the value of the first size,
      known only when the step runs, would have to tell.
    """
    if is_later(rows, shape):
        return Layout.SPREAD
    if (shape.shape[0] if tf.is_tensor(shape) else len(shape)) == 0:
        return Layout.FREE
    first = constant_value(shape[0])
    if first is not None:
        return Layout.FITS if first == rows else Layout.FREE
    size = Place(shape if tf.is_tensor(shape) else shape[0])
    counts = layouts.begins_with_count if tf.is_tensor(shape) else layouts.is_count
    if counts(size):
        return Layout.ROWS
    return Layout.FREE if layouts.is_free(size) else Layout.UNKNOWN


def is_later(rows: int | None, shape: Any) -> bool:
    """Returns whether the examples seem to be on a later axis: (steps, examples, features)."""
    sizes = constant_value(shape) if tf.is_tensor(shape) else shape
    if sizes is None or not len(sizes):
        return False
    first, *others = map(constant_value, sizes)
    if first is None or first == 1:
        return False
    return None in others if rows is None else first % max(rows, 1) != 0 and rows in others


def warn_of_one(step: Step, shape: Any) -> None:
    """Warns of a first size of 1 if that may be the number of a replica's examples.

    In a graph it may be only if a feature is sparse or ragged: else a share is traced without a
    number of rows.
    """
    share = step.share
    assert share is not None
    sizes = constant_value(shape) if tf.is_tensor(shape) else shape
    if not share.rows or sizes is None or not len(sizes) or constant_value(sizes[0]) != 1:
        return
    fewest = share.rows
    if tf.executing_eagerly():
        fewest = int(tf.convert_to_tensor(share.place)[3]) // step.num_replicas
    if fewest <= 1:
        step.warn_once(
            "a draw for one",
            "Random numbers of shape %s are taken for an example's own on a replica that has one "
            "example. Where all examples of a batch have the same, the step trains otherwise than "
            "on one device; then %s.",
            sizes, _OUT_OF_ONE,
        )  # fmt: skip


def note(step: Step, value: Any, layout: Layout) -> None:
    """Keeps for `check` random numbers whose shape may be that of the examples or of a weight."""
    assert step.share is not None
    rows, sizes = step.share.rows, value.shape
    if not rows or not sizes.rank or sizes[0] is None:
        return
    if sizes[0] % rows == 0 or rows in sizes[1:]:
        step.draws.append(Draw(value, layout is Layout.FREE))


def check(step: Step) -> None:
    """Checks at the end of a step of Keras' trainer how the step used its random numbers.

    Raises:
      ValueError: Numbers that are the same on all replicas were combined with values of examples,
        or numbers that were drawn for each example with a variable.
    """
    drawn, step.draws = step.draws, []
    for draw in drawn:
        walk = Walk()
        finder = _Uses(draw, walk, Claims(step, walk).layouts)
        used = finder.wrong()
        if used is None and finder.is_lost:
            step.warn_once(
                "a draw in a function",
                "Random numbers of shape %s go through a `tf.function` that runs eagerly, where it "
                "is not seen what they are combined with: they are taken for %s. Train once with "
                "run_eagerly=False, where it is.",
                tuple(draw.value.shape),
                "the same on all replicas" if draw.alike else "the examples' own",
            )  # fmt: skip
        if used is None:
            continue
        shape, rows = tuple(draw.value.shape), step.share and step.share.rows
        if draw.alike:
            raise ValueError(
                f"Random numbers of shape {shape} are the same on all replicas, for their first "
                f"size is not the number of the batch's examples, {rows} on this replica; but "
                f"`{used}` combines them with values of examples. Draw in the shape of the batch, "
                "`keras.random.normal((keras.ops.shape(x)[0], ...))`, and reshape what is drawn."
            )
        mend = (
            "Draw noise on weights with a first axis of 1, `keras.random.normal((1, *shape))[0]`; "
            "or batch the dataset without `drop_remainder=True`."
        )
        raise ValueError(
            f"Random numbers of shape {shape} are drawn for the batch's examples, {rows} on this "
            f"replica, but `{used}` combines them with a variable, or takes them for one. "
            f"{mend if rows != 1 else f'Try this: {_OUT_OF_ONE}.'}"
        )


class _Uses:
    """The uses of a draw in the step, up to where it meets values of examples or variables.

    Attributes:
      is_lost: Whether the draw went into a function, through which it cannot be followed.
    """

    def __init__(self, draw: Draw, walk: Walk, layouts: Layouts) -> None:
        self._draw, self._walk, self._layouts = draw, walk, layouts
        self.is_lost = False

    def wrong(self) -> str | None:
        """Returns the type of an operation that uses the draw wrongly; None if there is none."""
        seen: dict[tuple[int, int], Place] = {}
        ahead = self._walk.places(self._draw.value)
        while ahead:
            place = ahead.pop()
            if place.key in seen:
                continue
            seen[place.key] = place
            self.is_lost |= is_result_elsewhere(place)
            for user, outputs in users(place):
                self.is_lost |= user.is_function
                others = [given for given in user.inputs if given.tensor is not place.tensor]
                if self._is_wrong(user, place.tensor, others):
                    return user.type
                if user.type in _HOLDS and not origins(others, walk=self._walk) & Origin.DATA:
                    ahead += outputs
            ahead += self._walk.elsewhere(place)
        return None

    def _is_wrong(self, user: Node, value: Any, others: list[Place]) -> bool:
        if user.type in ELEMENTWISE:
            alike = [place for place in others if _are_aligned(place.tensor, value)]
            if self._draw.alike:
                rows = (Layout.ROWS, Layout.FITS, Layout.SPREAD)
                return any(self._layouts.of(place) in rows for place in alike)
            free = [place for place in alike if self._layouts.is_free(place)]
            return any(reads_variable(self._walk, place) for place in free)
        as_kernel = user.type.startswith(_WITH_KERNELS) and user.inputs[1].tensor is value
        if self._draw.alike or not as_kernel:
            return False
        return user.type != "MatMul" or not user.attribute("transpose_a")


def reads_variable(walk: Walk, place: Place) -> bool:
    """Returns whether a value is computed from variables, but not by repeating one per example."""
    seen, ahead = set(), [place]
    while ahead:
        place, node = walk.made_by(ahead.pop())
        if node is None or place.key in seen:
            continue
        if node.type in READS:
            return True
        seen.add(place.key)
        ahead += [] if node.type in ("Tile", "BroadcastTo") else node.inputs
    return False


def _are_aligned(one: Any, other: Any) -> bool:
    same_rank = one.shape.rank == other.shape.rank and bool(one.shape.rank)
    return same_rank and one.shape[0] == other.shape[0]
