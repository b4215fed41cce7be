"""The sizes of global tensors that follow from those of the inputs, where the trace does not tell.

They hold for any layout but that of values which are each replica's own: sizes are always those of
the global tensor.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdp.partition.sizes import Batch, Size, SizeLike, divided, is_positive, is_size, product
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor


def _names(text: str) -> list[str]:
    return text.split()


# Operations whose result has the shape of their only operand.
UNARY = _names("""
    Abs Acos Acosh Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1
    BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Angle Ceil CheckNumerics ComplexAbs
    Bucketize Cos Cosh Dawsn DebugGradientIdentity Digamma Elu Erf Erfc Erfinv
    Exp Expint Expm1 Floor FresnelCos FresnelSin Inv Invert IsFinite IsInf IsNan LeakyRelu
    Lgamma Log Log1p LogicalNot Ndtri OnesLike PopulationCount Reciprocal Relu Relu6 Rint Round
    Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Spence Sqrt Square Tan Tanh
    FakeQuantWithMinMaxArgs
""")

# Operations whose operands are broadcast together.
BROADCAST = _names("""
    ApproximateEqual Atan2 Betainc BitwiseAnd BitwiseOr BitwiseXor ClipByValue Complex EluGrad
    Equal FloorDiv FloorMod Greater GreaterEqual Igamma Igammac IgammaGradA InvGrad
    LeakyReluGrad LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod NextAfter
    NotEqual Polygamma Pow ReciprocalGrad Relu6Grad ReluGrad RightShift RsqrtGrad SeluGrad
    SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference TanhGrad TruncateDiv
    TruncateMod Xdivy Xlog1py Xlogy Zeta FakeQuantWithMinMaxArgsGradient RandomGammaGrad
    AsString DecodeBase64 EncodeBase64 RegexFullMatch RegexReplace StaticRegexFullMatch
    StaticRegexReplace StringJoin StringLength StringLower StringStrip StringToHashBucket
    StringToHashBucketFast StringToHashBucketStrong StringUpper UnicodeScript UnicodeTranscode
""")

# Those of them, and others, whose operands all have the shape of the result.
ALIKE = _names("""
    AddN EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad
    SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad FakeQuantWithMinMaxArgsGradient
""")

# Operations whose first result has the shape of an operand, by its number.
_LIKE = {
    0: """
        AdjustContrastv2 AdjustHue AdjustSaturation BiasAdd BiasAddV1 CheckNumericsV2 Cholesky
        Conv2DBackpropInputV2 Cumprod Cumsum CumulativeLogsumexp DebugIdentityV2 DecodeCompressed
        DecodeJSONExample Dilation2DBackpropInput DrawBoundingBoxes DrawBoundingBoxesV2 EnsureShape
        FFT FFT2D FFT3D FractionalMaxPoolGrad FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2
        FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 HSVToRGB IFFT IFFT2D IFFT3D Identity
        LRN LRNGrad LogSoftmax MatrixBandPart MatrixExponential MatrixInverse MatrixLogarithm
        MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixSquareRoot MaxPool3DGrad MaxPoolGrad
        MaxPoolGradV2 MaxPoolGradWithArgmax PlaceholderWithDefault Print RGBToHSV RandomIndexShuffle
        ReverseSequence ReverseV2 Roll Snapshot Softmax StopGradient StringToNumber TensorScatterAdd
        TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate ZerosLike
    """,
    1: """
        CholeskyGrad LowerBound MatrixSolve MaxPool3DGradGrad MaxPoolGradGrad MaxPoolGradGradV2
        ResizeBicubicGrad ResizeBilinearGrad ScaleAndTranslateGrad Select TridiagonalSolve
        InTopK InTopKV2 UpperBound
    """,
    3: "TridiagonalMatMul",
}

# Operations whose result has the shape that an operand says, by its number.
_SAID = {
    0: """
        AvgPool3DGrad AvgPoolGrad Conv2DBackpropInput Conv3DBackpropInputV2
        DepthwiseConv2dNativeBackpropInput Empty Fill StridedSliceGrad
    """,
    1: "BroadcastTo",
    2: "ScatterNd",
    3: "CropAndResizeGradImage",
}

Shape: TypeAlias = Sequence["SizeLike | None"]
Found: TypeAlias = Sequence["Shape | None"] | None

_SHAPES: dict[str, Callable[[SourceOp, Sequence[Tensor]], Found]] = {}


def shapes(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    """Returns what is known of the shapes of an operation's outputs; None where nothing is."""
    compute = _SHAPES.get(op.type)
    if compute is None:
        return None
    found = compute(op, inputs)
    if found is None:
        return None
    return [
        None if shape is None or output.shape.rank not in (None, len(shape)) else shape
        for shape, output in zip(found, op.outputs, strict=True)
    ]


def reshaped(tensor: Tensor, to: Tensor, static: tf.TensorShape) -> Shape | None:
    """Returns what is known of the sizes of a tensor in another shape.

    Args:
      tensor: The tensor.
      to: The shape, in which one entry may be -1.
      static: What the trace knows of the result.
    """
    said = to.sizes()
    rank = static.rank if static.rank is not None else None if said is None else len(said)
    if rank is None:
        return None
    sizes = [known_length(said[axis]) if said is not None else None for axis in range(rank)]
    if static.rank is not None:
        sizes = [b if a is None else a for a, b in zip(sizes, static.as_list(), strict=True)]
    if tensor.shape is not None and sizes.count(None) == 1:
        at = sizes.index(None)
        others = product(size for size in sizes if size is not None)
        inferred = said is not None and _is_number(said[at], -1)
        if inferred or is_nonzero(others):  # else any size may stand there
            sizes[at] = divided(product(tensor.dims()), others)
    return sizes


def broadcast_shape(tensors: Sequence[Tensor], rank: int) -> list[SizeLike | None]:
    """Returns what is known of the sizes of tensors that are broadcast together to `rank` axes."""
    return [
        broadcast_sizes({each.dim(axis) for each in tensors if axis >= -len(each.shape or ())})
        for axis in range(-rank, 0)
    ]


def elementwise_shape(type_: str, tensors: Sequence[Tensor], rank: int) -> list[SizeLike | None]:
    """Returns what is known of the sizes of the result of an elementwise operation of a type."""
    if type_ not in ALIKE or any(tensor.rank != rank for tensor in tensors):
        return broadcast_shape(tensors, rank)
    return [min((tensor.dim(axis) for tensor in tensors), key=_newness) for axis in range(rank)]


def _newness(size: SizeLike) -> Any:
    """Returns a key that puts numbers first, and what is known of forward passes before others."""
    return sorted(size.symbols(), reverse=True) if isinstance(size, Size) else []


def broadcast_sizes(sizes: set[SizeLike]) -> SizeLike | None:
    """Returns the size of an axis along which operands of some sizes are broadcast together."""
    # Beside a number, a size that is known when the step runs is that number or 1.
    others = sizes - {1}
    told = {size for size in others if isinstance(size, int)} or others
    return told.pop() if len(told) == 1 else None if told else 1


def is_nonzero(size: Any) -> bool:
    """Returns whether a size is certainly not 0, as no batch is empty."""
    if isinstance(size, Size) and len(size.terms) == 1:
        return all(isinstance(symbol, Batch) for symbol in size.symbols())
    return is_size(size) and (is_positive(size) or is_positive(-size))


def axes_of(tensor: Tensor, rank: int | None) -> list[int] | None:
    """Returns the axes that a tensor of axes holds, counted from 0; None where they are unknown."""
    found = tensor.constant()
    if found is None or rank is None:
        return None
    return [int(axis) % max(rank, 1) for axis in found.ravel()]


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number


def known_length(size: Any) -> Any:
    """Returns an entry of a shape if it is a size, else None."""
    return None if not is_size(size) or (isinstance(size, int) and size < 0) else size


def known_scalar(tensor: Tensor) -> SizeLike | None:
    """Returns a scalar's value where it is known to be a size, else None."""
    value: Any = None if tensor.entries is None else known_length(tensor.entries[()])
    return value


def known_lengths(tensor: Tensor) -> list[Any] | None:
    """Returns the entries of a shape, each None if it is no size; None if nothing is known."""
    sizes = tensor.sizes()
    return None if sizes is None else [known_length(size) for size in sizes]


def shapes_of(*types: str) -> Any:
    """Registers the decorated function: what it returns is known of results of these types."""

    def register(compute: Callable[[SourceOp, Sequence[Tensor]], Found]) -> Any:
        _SHAPES.update(dict.fromkeys(types, compute))
        return compute

    return register


def _like(at: int, op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    rest = [None] * (len(op.outputs) - 1)
    return None if inputs[at].rank is None else [inputs[at].dims(), *rest]


def _said(at: int, op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [known_lengths(inputs[at])]


@shapes_of(
    *UNARY,
    *BROADCAST,
    *_names("""
    Add AddN AddV2 Cast Conj Cross Div DivNoNan Imag Mul MulNoNan Neg Real RealDiv SelectV2 Sub
    Substr
"""),
)
def _elementwise(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    ranks = [tensor.rank for tensor in inputs if tensor.rank is not None]
    if len(ranks) < len(inputs):
        return None
    shape = elementwise_shape(op.type, inputs, max(ranks))
    if op.attr("incompatible_shape_error") is False and not _surely_fit(inputs, shape):
        return None  # `x == y` is one truth value where shapes do not fit
    return [shape]


def _surely_fit(inputs: Sequence[Tensor], shape: Sequence[SizeLike | None]) -> bool:
    """Whether operands are known to broadcast: sizes that are not 1 are the same of all."""
    from_last = (reversed(tensor.shape or ()) for tensor in inputs)
    by_axis = itertools.zip_longest(*from_last, fillvalue=1)
    return None not in shape and all(len({*sizes} - {1}) <= 1 for sizes in by_axis)


for _at, _types in _LIKE.items():
    shapes_of(*_names(_types))(functools.partial(_like, _at))

for _at, _types in _SAID.items():
    shapes_of(*_names(_types))(functools.partial(_said, _at))


@shapes_of("IdentityN", "DecodeCSV")
def _each_like(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensors = inputs if op.type == "IdentityN" else [inputs[0]] * len(op.outputs)
    return [None if tensor.rank is None else tensor.dims() for tensor in tensors]


@shapes_of("Reshape")
def _reshape(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [reshaped(inputs[0], inputs[1], op.outputs[0].shape)]


@shapes_of("Bitcast")
def _bitcast(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    rank = op.outputs[0].shape.rank
    if rank is None or inputs[0].rank is None:
        return None
    sizes = inputs[0].dims()[:rank]
    return [[*sizes, *[None] * (rank - len(sizes))]]


@shapes_of("Transpose", "ConjugateTranspose")
def _transpose(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    order = axes_of(inputs[1], inputs[0].rank)
    return None if order is None else [[inputs[0].dim(axis) for axis in order]]


@shapes_of("ExpandDims")
def _expand_dims(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    axis = None if inputs[0].rank is None else axes_of(inputs[1], inputs[0].rank + 1)
    if axis is None:
        return None
    sizes: list[SizeLike | None] = list(inputs[0].dims())
    sizes.insert(axis[0], 1)
    return [sizes]


@shapes_of("Squeeze")
def _squeeze(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    axes = squeezed(op, inputs[0])
    if axes is None:
        return None
    return [[size for axis, size in enumerate(inputs[0].dims()) if axis not in axes]]


def squeezed(op: SourceOp, tensor: Tensor) -> list[int] | None:
    """Returns the axes that are removed; None where that depends on sizes that are not known."""
    if tensor.shape is None:
        return None
    said = op.attr("squeeze_dims")
    if said:
        return sorted(axis % len(tensor.shape) for axis in said)
    if not all(isinstance(size, int) for size in tensor.shape):
        return None
    return [axis for axis, size in enumerate(tensor.shape) if size == 1]


@shapes_of("HistogramFixedWidth", "LinSpace")
def _line(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [[known_scalar(inputs[2])]]


@shapes_of(
    *_names("""
    All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod ReduceJoin Sum
""")
)
def _reduction(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    axes = axes_of(inputs[1], inputs[0].rank)
    if axes is None:
        return None
    sizes = list(enumerate(inputs[0].dims()))
    if op.type == "ReduceJoin" and not axes:  # it joins all
        axes = [axis for axis, _ in sizes]
    if op.attr("keep_dims"):
        return [[1 if axis in axes else size for axis, size in sizes]]
    return [[size for axis, size in sizes if axis not in axes]]
