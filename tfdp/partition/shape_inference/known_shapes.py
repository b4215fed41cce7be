"""The sizes of whole tensors that follow from those of the inputs, where the trace does not tell.

They hold for any layout but that of values which are each replica's own: sizes are always those of
the whole tensor.
"""

from __future__ import annotations

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
    Cos Cosh Dawsn DebugGradientIdentity Digamma Elu Erf Erfc Erfinv
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
    TruncateMod Xdivy Xlog1py Xlogy Zeta FakeQuantWithMinMaxArgsGradient
""")

# Those of them, and others, whose operands all have the shape of the result.
ALIKE = _names("""
    AddN EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad
    SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad FakeQuantWithMinMaxArgsGradient
""")

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
    shape: list[SizeLike | None] = []
    for axis in range(rank):
        sizes = {
            tensor.dim(axis - rank + len(tensor.shape or ()))
            for tensor in tensors
            if axis - rank + len(tensor.shape or ()) >= 0
        } - {1}
        # Beside a number, a size that is known when the step runs is that number or 1.
        told = {size for size in sizes if isinstance(size, int)} or sizes
        shape.append(told.pop() if len(told) == 1 else None if told else 1)
    return shape


def elementwise_shape(type_: str, tensors: Sequence[Tensor], rank: int) -> list[SizeLike | None]:
    """Returns what is known of the sizes of the result of an elementwise operation of a type."""
    if type_ not in ALIKE or any(tensor.rank != rank for tensor in tensors):
        return broadcast_shape(tensors, rank)
    return [min((tensor.dim(axis) for tensor in tensors), key=_newness) for axis in range(rank)]


def _newness(size: SizeLike) -> Any:
    """Returns a key that puts numbers first, and what is known of forward passes before others."""
    return sorted(size.symbols(), reverse=True) if isinstance(size, Size) else []


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


@shapes_of(
    *UNARY,
    *BROADCAST,
    *_names("""
    Add AddN AddV2 Cast Conj Div DivNoNan Imag Mul MulNoNan Neg Real RealDiv SelectV2 Sub
"""),
)
def _elementwise(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    if op.attr("incompatible_shape_error") is False:
        return None  # a scalar where the shapes do not match
    ranks = [tensor.rank for tensor in inputs]
    if None in ranks:
        return None
    return [elementwise_shape(op.type, inputs, max(rank for rank in ranks if rank is not None))]


@shapes_of(
    *_names("""
    BiasAdd CheckNumerics CheckNumericsV2 Cholesky Cumprod Cumsum EnsureShape LogSoftmax
    MatrixBandPart MatrixInverse OnesLike ReverseV2 Roll Softmax ZerosLike
""")
)
def _same(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return None if inputs[0].rank is None else [inputs[0].dims()]


@shapes_of("Select")
def _same_as_second(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return None if inputs[1].rank is None else [inputs[1].dims()]


@shapes_of("Reshape")
def _reshape(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [reshaped(inputs[0], inputs[1], op.outputs[0].shape)]


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


@shapes_of("Empty", "Fill")
def _fill(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [known_lengths(inputs[0])]


@shapes_of("StridedSliceGrad")
def _of_sliced(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [known_lengths(inputs[0])]


@shapes_of("Slice")
def _slice(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    begins, sizes = inputs[1].sizes(), inputs[2].sizes()
    if inputs[0].rank is None or begins is None or sizes is None:
        return None
    triples = zip(inputs[0].dims(), begins, sizes, strict=True)
    return [[known_length(length - begin if n == -1 else n) for length, begin, n in triples]]


@shapes_of("ScatterNd")
def _scatter(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [known_lengths(inputs[2])]


@shapes_of("CropAndResizeGradImage")
def _images(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [known_lengths(inputs[3])]


@shapes_of("LinSpace")
def _line(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    number = inputs[2].entries
    return None if number is None else [[known_length(number[()])]]


@shapes_of("BroadcastTo")
def _broadcast_to(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    return [known_lengths(inputs[1])]


@shapes_of("Tile")
def _tile(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    times = known_lengths(inputs[1])
    if times is None or inputs[0].rank is None:
        return None
    return [[product(pair) for pair in zip(inputs[0].dims(), times, strict=True)]]


@shapes_of("Pack")
def _pack(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    known = next((tensor for tensor in inputs if tensor.rank is not None), None)
    if known is None:
        return None
    sizes: list[SizeLike | None] = list(known.dims())
    sizes.insert(op.attr("axis") % (len(sizes) + 1), len(inputs))
    return [sizes]


@shapes_of("Unpack")
def _unpack(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    if inputs[0].rank is None:
        return None
    sizes = inputs[0].dims()
    del sizes[op.attr("axis") % len(sizes)]
    return [sizes for _ in op.outputs]


@shapes_of("ConcatV2")
def _concat(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensors = inputs[:-1]
    axes = axes_of(inputs[-1], tensors[0].rank)
    if axes is None or any(tensor.rank is None for tensor in tensors):
        return None
    sizes: list[SizeLike | None] = list(tensors[0].dims())
    total: Any = 0
    for tensor in tensors:
        total = total + tensor.dim(axes[0])
    sizes[axes[0]] = total
    return [sizes]


@shapes_of("All", "Any", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum")
def _reduction(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    axes = axes_of(inputs[1], inputs[0].rank)
    if axes is None:
        return None
    sizes = list(enumerate(inputs[0].dims()))
    if op.attr("keep_dims"):
        return [[1 if axis in axes else size for axis, size in sizes]]
    return [[size for axis, size in sizes if axis not in axes]]


@shapes_of("GatherV2")
def _gather(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    array, indices, axis = inputs
    axes = axes_of(axis, array.rank)
    if axes is None or array.rank is None or indices.rank is None:
        return None
    batch_dims = op.attr("batch_dims")
    rows = indices.dims()[batch_dims + (indices.rank if batch_dims < 0 else 0) :]
    return [[*array.dims()[: axes[0]], *rows, *array.dims()[axes[0] + 1 :]]]


@shapes_of("TopKV2")
def _largest(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensor, count = inputs
    if tensor.rank is None or count.entries is None:
        return None
    return [[*tensor.dims()[:-1], known_length(count.entries[()])] for _ in op.outputs]


@shapes_of("MatMul")
def _matmul(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    a, b = inputs
    if a.rank != 2 or b.rank != 2:
        return None
    return [[a.dim(int(op.attr("transpose_a"))), b.dim(1 - int(op.attr("transpose_b")))]]


@shapes_of("BatchMatMulV2")
def _batch_matmul(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    a, b = inputs
    if a.rank is None or b.rank is None or min(a.rank, b.rank) < 2:
        return None
    rank = max(a.rank, b.rank)
    sizes = broadcast_shape(inputs, rank)[:-2]
    rows = a.dim(a.rank - 1 if op.attr("adj_x") else a.rank - 2)
    columns = b.dim(b.rank - 2 if op.attr("adj_y") else b.rank - 1)
    return [[*sizes, rows, columns]]


@shapes_of("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def _diagonal(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    """Returns the sizes of square matrices of which all but the main diagonal is padding."""
    tensor, *others = inputs
    if tensor.rank is None:
        return None
    for number, standard in zip(others, (0, -1, -1), strict=False):
        value = number.constant()
        if value is None or value.size != 1 or value.item() != standard:
            return None
    return [[*tensor.dims(), tensor.dim(tensor.rank - 1)]]
