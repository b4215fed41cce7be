"""The rules by which operations move a batch's examples, from their inputs to their output."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.origins import is_random
from tfdp.keras_adapter.tracing.walk import Node, Place


class Layout(enum.IntEnum):
    """The arrangement of the share's examples in a tensor; a smaller member says more.

    Attributes:
      FREE: The tensor holds no examples: it is the same on all replicas.
      ROWS: The first axis is that of the examples, or of equally many rows for each.
      FITS: The first axis has a fixed length that fits ROWS, which proves nothing more. It serves
        for a mean, whose weight is the share's fraction with examples and without.
      SPREAD: The tensor holds equally many numbers of each example, in any order.
      UNKNOWN: None of these can be shown.
    """

    FREE = 0
    ROWS = 1
    FITS = 2
    SPREAD = 3
    UNKNOWN = 4


# Operations whose output elements are computed from the input elements at the same place or, as a
# softmax's, from those along axes other than the first.
ELEMENTWISE = """
    Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e BitwiseAnd
    BitwiseOr BitwiseXor Cast Ceil
    CheckNumerics ClipByValue Cos Cosh DebugGradientIdentity Digamma Div DivNoNan Elu
    EnsureShape Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual
    Identity Igamma Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual Lgamma Log Log1p
    LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mod Mul MulNoNan Ndtri Neg
    NextAfter NotEqual OnesLike Pow PreventGradient RealDiv Reciprocal Relu Relu6 Rint Round
    Rsqrt Select SelectV2 Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square
    SquaredDifference StopGradient Sub Tan Tanh TruncateDiv Xdivy Xlog1py Xlogy ZerosLike Zeta
    Softmax LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
    SoftplusGrad SoftsignGrad SigmoidGrad TanhGrad ReluGrad Relu6Grad EluGrad SeluGrad
    LeakyReluGrad RsqrtGrad SqrtGrad ReciprocalGrad
""".split()  # noqa: SIM905
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "EuclideanNorm")
# Operations on images and sequences: the first input's first axis is that of the examples, and the
# other inputs hold none.
_OF_FIRST = ("Conv", "Depthwise", "MaxPool", "AvgPool", "BiasAdd", "Resize")


class Rules(ABC):
    """The rules that give the layout of an operation's output from the layouts of its inputs.

    Args:
      rows: The number of the replica's examples, where tracing knows it.
    """

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    @abstractmethod
    def of(self, place: Place) -> Layout:
        """Returns the layout of a tensor."""

    @abstractmethod
    def is_free(self, place: Place) -> bool:
        """Returns whether a tensor has nothing of the batch in it."""

    @abstractmethod
    def begins_with_count(self, shape: Place) -> bool:
        """Returns whether a vector's first number is the number of examples, times a constant."""

    def rule(self, node: Node) -> Callable[[Any, Node], Layout] | None:
        """Returns the rule for an operation's type, a function of the output and the operation."""
        if node.type in ELEMENTWISE:
            return self._elementwise
        if node.type in _REDUCTIONS or node.type in ("ArgMax", "ArgMin"):
            return self._reduced
        if node.type in ("Fill", "BroadcastTo") or is_random(node.type):
            return self._of_shape
        own = getattr(self, f"_{node.type.lower()}", None)
        return self._of_first if own is None and node.type.startswith(_OF_FIRST) else own

    def _elementwise(self, output: Any, node: Node) -> Layout:
        layouts = [self.of(place) for place in node.inputs]
        worst = max(layouts)
        if worst in (Layout.FREE, Layout.UNKNOWN):
            return worst
        if node.type in ("Softmax", "LogSoftmax") and output.shape.rank == 1:
            return Layout.UNKNOWN  # its only axis is that of the examples
        ranks = {
            place.tensor.shape.rank
            for place, layout in zip(node.inputs, layouts, strict=True)
            if layout is not Layout.FREE
        }
        if len(ranks) > 1 and not node.type.startswith("Sparse"):
            return Layout.UNKNOWN  # as (examples,) broadcast against (steps, examples)
        holders = [p for p, la in zip(node.inputs, layouts, strict=True) if la is not Layout.FREE]
        if worst is Layout.SPREAD and not _has_shape_of_one(output, holders):
            return Layout.UNKNOWN  # as (1, examples) broadcast against (examples, 1)
        others = [p for p, la in zip(node.inputs, layouts, strict=True) if la is Layout.FREE]
        if any((p.tensor.shape.rank or 0) > max(rank or 0 for rank in ranks) for p in others):
            return Layout.SPREAD
        if Layout.ROWS in layouts and any(_has_a_row_each(output, place) for place in others):
            return Layout.UNKNOWN
        confirmed = worst is Layout.FITS and Layout.ROWS in layouts
        return Layout.ROWS if confirmed else worst

    def _reduced(self, output: Any, node: Node) -> Layout:
        layout, rank = self.of(node.inputs[0]), node.inputs[0].tensor.shape.rank
        axes = constant_value(node.inputs[1])
        if layout not in (Layout.ROWS, Layout.FITS) or axes is None or rank is None:
            return Layout.UNKNOWN
        without_first = all(int(axis) % rank for axis in axes.reshape(-1))
        return layout if without_first else Layout.UNKNOWN

    def _of_shape(self, output: Any, node: Node) -> Layout:
        if node.type == "BroadcastTo":
            layout = self.of(node.inputs[0])
            if layout is not Layout.FREE:
                same = node.inputs[0].tensor.shape.rank == output.shape.rank
                return layout if same else Layout.UNKNOWN
            shape = node.inputs[1]
        else:
            shape = node.inputs[0]
        first = output.shape[0] if output.shape.rank else None
        if first is not None:
            fits = self._rows is not None and first % max(self._rows, 1) == 0
            return Layout.FITS if fits and is_random(node.type) else Layout.UNKNOWN
        return Layout.ROWS if self.begins_with_count(shape) else Layout.UNKNOWN

    def _of_first(self, output: Any, node: Node) -> Layout:
        first, *others = node.inputs
        alone = all(self.of(other) is Layout.FREE for other in others)
        return self._first_axis(first) if alone else Layout.UNKNOWN

    def _conv2dbackpropinput(self, output: Any, node: Node) -> Layout:
        """Returns the layout of a transposed convolution of a shape, a kernel and images."""
        _, kernel, images = node.inputs
        alone = self.of(kernel) is Layout.FREE
        return self._first_axis(images) if alone else Layout.UNKNOWN

    _conv3dbackpropinputv2 = _depthwiseconv2dnativebackpropinput = _conv2dbackpropinput

    def _first_axis(self, place: Place) -> Layout:
        layout = self.of(place)
        return layout if layout is not Layout.SPREAD else Layout.UNKNOWN

    def _reshape(self, output: Any, node: Node) -> Layout:
        layout = self.of(node.inputs[0])
        before, after = node.inputs[0].tensor.shape, output.shape
        if layout in (Layout.FREE, Layout.UNKNOWN, Layout.SPREAD):
            return layout
        if self._rows and after.rank and after[0] is not None and after[0] % self._rows == 0:
            return layout
        if self.begins_with_count(node.inputs[1]):
            return layout
        old, new = (_numbers_in_row(shape) for shape in (before, after))
        # Rows of `new` numbers that divide a row of `old`: whole rows for each example, in turn.
        several = old is not None and new and old % new == 0
        return layout if several else Layout.SPREAD

    def _transpose(self, output: Any, node: Node) -> Layout:
        order, layout = constant_value(node.inputs[1]), self.of(node.inputs[0])
        if layout in (Layout.FREE, Layout.UNKNOWN) or (order is not None and int(order[0]) == 0):
            return layout
        return Layout.SPREAD

    def _expanddims(self, output: Any, node: Node) -> Layout:
        axis, layout = constant_value(node.inputs[1]), self.of(node.inputs[0])
        if layout in (Layout.FREE, Layout.UNKNOWN):
            return layout
        rank = output.shape.rank
        kept = axis is not None and rank is not None and int(axis.reshape(-1)[0]) % rank != 0
        return layout if kept else Layout.SPREAD

    def _squeeze(self, output: Any, node: Node) -> Layout:
        axes, rank = node.attribute("squeeze_dims"), node.inputs[0].tensor.shape.rank
        if not axes or rank is None or any(axis % rank == 0 for axis in axes):
            return Layout.UNKNOWN
        return self.of(node.inputs[0])

    def _concatv2(self, output: Any, node: Node) -> Layout:
        layouts = [self.of(place) for place in node.inputs[:-1]]
        return max(layouts) if Layout.FREE not in layouts else Layout.UNKNOWN

    def _pack(self, output: Any, node: Node) -> Layout:
        layouts = [self.of(place) for place in node.inputs]
        if Layout.FREE in layouts or Layout.UNKNOWN in layouts:
            return Layout.UNKNOWN
        return max(layouts) if node.attribute("axis") else Layout.SPREAD

    def _stridedslice(self, output: Any, node: Node) -> Layout:
        """Returns the layout of a slice of the whole first axis, as `x[:, 0]` and `x[..., 0]`."""
        names = ("shrink_axis_mask", "new_axis_mask", "begin_mask", "end_mask", "ellipsis_mask")
        masks = [node.attribute(name) for name in names]
        shrink, new, begin, end, ellipsis = (mask & 1 for mask in masks)
        strides, rank = constant_value(node.inputs[3]), node.inputs[0].tensor.shape.rank
        if strides is None or rank is None:
            return Layout.UNKNOWN
        sliced = len(strides) - 1 - (masks[1] % 2 ** len(strides)).bit_count()
        whole = begin and end and strides[0] == 1 and not shrink and not new
        if not (sliced < rank if ellipsis else whole):
            return Layout.UNKNOWN
        return self._first_axis(node.inputs[0])

    def _gatherv2(self, output: Any, node: Node) -> Layout:
        params, indices, axis = (self.of(place) for place in node.inputs)
        batched = node.attribute("batch_dims")
        if params is Layout.FREE and not batched:
            whole = int(constant_value(node.inputs[2]) or 0) == 0
            return indices if whole else Layout.UNKNOWN
        if batched and params is indices and axis is Layout.FREE:
            return params
        along = constant_value(node.inputs[2])
        later = along is not None and int(along) > 0 and indices is Layout.FREE
        return params if later and params is not Layout.SPREAD else Layout.UNKNOWN

    def _split(self, output: Any, node: Node) -> Layout:
        return self._along(node.inputs[1], constant_value(node.inputs[0]))

    def _splitv(self, output: Any, node: Node) -> Layout:
        return self._along(node.inputs[0], constant_value(node.inputs[2]))

    def _unpack(self, output: Any, node: Node) -> Layout:
        return self._along(node.inputs[0], node.attribute("axis"))

    def _cumsum(self, output: Any, node: Node) -> Layout:
        return self._along(node.inputs[0], constant_value(node.inputs[1]))

    def _reversev2(self, output: Any, node: Node) -> Layout:
        axes = constant_value(node.inputs[1])
        return self._along(node.inputs[0], axes if np.size(axes) == 1 else None)

    def _topkv2(self, output: Any, node: Node) -> Layout:
        return self._along(node.inputs[0], -1)

    def _along(self, place: Place, axis: Any) -> Layout:
        """Returns the layout of what is done along one axis, which must not be the first."""
        rank = place.tensor.shape.rank
        if axis is None or not rank or int(np.reshape(axis, ())) % rank == 0:
            return Layout.UNKNOWN
        return self._first_axis(place)

    def _pad(self, output: Any, node: Node) -> Layout:
        added = constant_value(node.inputs[1])
        none_before = added is not None and not added[0].any()
        return self._first_axis(node.inputs[0]) if none_before else Layout.UNKNOWN

    _padv2 = _mirrorpad = _pad

    def _bitcast(self, output: Any, node: Node) -> Layout:
        same = output.shape.rank == node.inputs[0].tensor.shape.rank
        return self.of(node.inputs[0]) if same else Layout.UNKNOWN

    def _resourcegather(self, output: Any, node: Node) -> Layout:
        return self.of(node.inputs[1])

    def _onehot(self, output: Any, node: Node) -> Layout:
        return self.of(node.inputs[0]) if node.attribute("axis") != 0 else Layout.SPREAD

    def _tile(self, output: Any, node: Node) -> Layout:
        return self.of(node.inputs[0]) if self.is_free(node.inputs[1]) else Layout.UNKNOWN

    def _matmul(self, output: Any, node: Node) -> Layout:
        left, right = node.inputs
        if node.attribute("transpose_a") or self.of(right) is not Layout.FREE:
            return Layout.UNKNOWN
        return self._first_axis(left)

    def _batchmatmulv2(self, output: Any, node: Node) -> Layout:
        left, right = node.inputs
        layouts, rank = (self.of(left), self.of(right)), left.tensor.shape.rank or 0
        if layouts[1] is Layout.FREE and (rank > 2 or not node.attribute("adj_x")):
            return self._first_axis(left)
        both = layouts[0] is layouts[1] and rank > 2 and right.tensor.shape.rank == rank
        return layouts[0] if both and layouts[0] is not Layout.SPREAD else Layout.UNKNOWN

    def _einsum(self, output: Any, node: Node) -> Layout:
        equation = node.attribute("equation")
        equation = equation.decode() if isinstance(equation, bytes) else equation
        given, result = equation.split("->")
        found = set()
        for place, letters in zip(node.inputs, given.split(","), strict=True):
            layout = self.of(place)
            if layout is not Layout.FREE:
                same = letters[:1] == result[:1] and letters[:1].isalpha()
                found.add(layout if same and layout is not Layout.SPREAD else Layout.UNKNOWN)
        return max(found, default=Layout.FREE)


def _has_shape_of_one(output: Any, places: list[Place]) -> bool:
    shapes = [place.tensor.shape.as_list() for place in places]
    return all(shape == shapes[0] for shape in shapes) or output.shape.as_list() in shapes


def _has_a_row_each(output: Any, free: Place) -> bool:
    """Returns whether a tensor without examples has a row of its own for each row of the output.

    Where shapes are fixed, such is made for the number of the share's examples, as positions in the
    batch are. With that of the whole batch it would not fit.
    """
    shape = free.tensor.shape
    if not shape.rank or shape.rank != output.shape.rank or shape[0] in (None, 1):
        return False
    value = constant_value(free)
    return value is None or not bool((value == value[:1]).all())


def _numbers_in_row(shape: tf.TensorShape) -> int | None:
    if not shape.rank or None in shape[1:].as_list():
        return None
    return math.prod(shape[1:].as_list())
