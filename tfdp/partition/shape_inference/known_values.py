"""The values of small tensors of whole numbers, in terms of the lengths of batches."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdp.partition.shape_inference import (  # noqa: F401 - they register what they know
    known_joined_shapes,
    known_products,
    known_slices,
    known_text_shapes,
)
from tfdp.partition.shape_inference.known_arrays import ARRAYS, filled
from tfdp.partition.shape_inference.known_numbers import NUMBERS, each, fitted
from tfdp.partition.shape_inference.known_shapes import shapes
from tfdp.partition.sizes import UNKNOWN, product
from tfdp.partition.source import SourceOp, SourceTensor
from tfdp.partition.tensors import MOST_ENTRIES, Tensor, array_of

__all__ = ["evaluate", "given", "shapes"]

_FOLLOWED = (tf.int32, tf.int64, tf.bool)
_COMPUTED = {**ARRAYS, **NUMBERS}


def evaluate(op: SourceOp, inputs: Sequence[Tensor]) -> Sequence[np.ndarray | None] | None:
    """Returns what is known of the values of an operation's outputs; None where nothing is.

    Args:
      op: The operation.
      inputs: Its inputs, all replicated. Of one with unknown entries the shape may be enough.
    """
    if not any(output.dtype in _FOLLOWED for output in op.outputs):
        return None
    try:
        found = _values(op, inputs)
    except (IndexError, ValueError):  # a program that fails when it runs
        return None
    if found is None:
        return None
    return [_kept(value, output) for value, output in zip(found, op.outputs, strict=True)]


def given(tensor: Tensor) -> np.ndarray | None:
    """Returns a tensor's entries, unknown ones too; None where their number is unknown, too."""
    if tensor.entries is not None or tensor.dtype not in _FOLLOWED or tensor.shape is None:
        return tensor.entries
    sizes = [size for size in tensor.shape if isinstance(size, int)]
    return filled(sizes, UNKNOWN) if len(sizes) == len(tensor.shape) else None


def _values(op: SourceOp, inputs: Sequence[Tensor]) -> Sequence[np.ndarray | None] | None:
    if op.type in _OF_SHAPES:
        return _of_shapes(op, inputs)
    compute = _COMPUTED.get(op.type)
    arrays = [array for array in map(given, inputs) if array is not None]
    if compute is None or len(arrays) < len(inputs):
        return None
    return compute(op, arrays)


_OF_SHAPES = ("OnesLike", "Rank", "Shape", "ShapeN", "Size", "StringSplitV2", "ZerosLike")


def _of_shapes(op: SourceOp, inputs: Sequence[Tensor]) -> Sequence[np.ndarray | None] | None:
    """Returns the values of what an operation only reads in the shapes of its inputs."""
    if op.type == "StringSplitV2":  # the number of texts, and the most words that one has
        rows = inputs[0].dim(0) if inputs[0].rank == 1 else UNKNOWN
        return [None, None, array_of([rows, UNKNOWN])]
    if any(tensor.shape is None for tensor in inputs):
        return None
    if op.type in ("Shape", "ShapeN"):
        return [array_of(tensor.dims()) for tensor in inputs]
    (tensor,) = inputs
    if op.type == "Rank":
        return [array_of(tensor.rank)]
    if op.type == "Size":
        return [array_of(product(tensor.dims()))]
    sizes = [size for size in tensor.dims() if isinstance(size, int)]
    one = op.type == "OnesLike"
    value = one if tensor.dtype == tf.bool else int(one)
    return [filled(sizes, value) if len(sizes) == tensor.rank else None]


def _kept(value: np.ndarray | None, output: SourceTensor) -> np.ndarray | None:
    """Returns a value as its dtype holds it; None where nothing is known, or it is not followed."""
    if value is None or output.dtype not in _FOLLOWED or value.size > MOST_ENTRIES:
        return None
    if not output.shape.is_compatible_with(value.shape):
        return None
    found = each(lambda entry: fitted(entry, output.dtype), value)
    return None if found.size and all(entry is UNKNOWN for entry in found.flat) else found
