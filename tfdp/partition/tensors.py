"""Tensors of the one-device program, as a replica's program has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdp.base.unique_numbers import unique_number
from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Layout, Replicated, Sharded
from tfdp.partition.row_ids import RowIds
from tfdp.partition.sizes import UNKNOWN, Size, SizeLike, Symbol, is_size

if TYPE_CHECKING:
    from tfdp.partition.program_record import Gathered

# Values of at most so many entries are followed: shapes, axes, sizes.
MOST_ENTRIES = 64


class Dimension(Symbol):
    """The length of an axis that is no batch: known when the step runs, alike on all replicas."""

    def __init__(self, output: Output, axis: int) -> None:
        super().__init__(f"{output.name}[{axis}]")
        self.output, self.axis = output, axis


class LoopVariable:
    """A variable of a loop in one round, in which it may be a partial.

    Attributes:
      is_summed: Whether it is summed in the round, or what the round has made of it as a partial.
    """

    is_summed = False


class Tensor:
    """A tensor of the one-device program: what a replica holds of it, and what is known of it.

    Attributes:
      local: What the replica holds.
      layout: How that is related to the global tensor.
      shape: The global tensor's sizes, each None where nothing is known; None: not even the rank
        is.
      entries: The global tensor's value, an array of sizes, booleans and `UNKNOWN`; None: unknown.
        It is followed for small tensors of integers and booleans.
      replicated: The replicated tensor, once it has been made.
      parts: The replica's parts of it in other layouts, once they have been made.
      number: Its place in the order in which tensors came to be; of a partial that was made of
        partials that of the last of them, as its sum can be sent as early.
      names: What it tells of rows, if it does.
      cause: What was computed on the gathered batch, of tensors that were sharded, if it is that or
        made of it.
      origin: The tensor outside of the loop that this one is within it, if the loop leaves it as it
        is.
      variables: The loops' variables that it is linear in: where they are partials, so is it.
    """

    __slots__ = (
        *("cause", "entries", "layout", "local", "names", "number", "origin", "parts"),
        *("replicated", "shape", "variables"),
    )

    def __init__(
        self,
        local: Output,
        layout: Layout,
        shape: Sequence[SizeLike | None] | None,
        entries: np.ndarray | None = None,
    ) -> None:
        self.local, self.layout = local, layout
        if entries is not None and local.dtype != tf.variant:  # of lists they are the elements'
            shape = entries.shape
        self.shape: list[SizeLike | None] | None = None if shape is None else list(shape)
        self.entries = entries
        self.replicated: Output | None = local if isinstance(layout, Replicated) else None
        self.parts: dict[Layout, Output] = {}
        self.number = unique_number()
        self.cause: Gathered | None = None
        self.origin: Tensor | None = None
        self.names: RowIds | None = None
        self.variables: frozenset[LoopVariable] = frozenset()

    @property
    def dtype(self) -> tf.DType:
        return self.local.dtype

    @property
    def rank(self) -> int | None:
        """The number of its axes; None where that is unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def sharded(self) -> Sharded | None:
        """The layout if the tensor is sharded, else None."""
        return self.layout if isinstance(self.layout, Sharded) else None

    def dim(self, axis: int) -> SizeLike:
        """Returns the size of an axis of the global tensor: a symbol where nothing is known."""
        assert self.shape is not None
        size = self.shape[axis]
        if size is None:
            size = self.shape[axis] = Size.of(Dimension(self.local, axis))
        return size

    def dims(self) -> list[SizeLike]:
        """Returns the sizes of all axes; the rank must be known."""
        assert self.shape is not None
        return [self.dim(axis) for axis in range(len(self.shape))]

    def constant(self) -> np.ndarray | None:
        """Returns the value where it does not depend on the lengths of batches, else None."""
        if self.entries is None:
            return None
        if all(isinstance(entry, int) for entry in self.entries.flat):  # booleans are, too
            return self.entries.astype(bool if self.dtype.is_bool else np.int64)
        return None

    def sizes(self) -> list[Any] | None:
        """Returns the entries of a vector, each a size or `UNKNOWN`; None if nothing is known."""
        if self.entries is None or self.entries.ndim != 1:
            return None
        return [entry if is_size(entry) else UNKNOWN for entry in self.entries]

    def within(self, local: Output | None = None) -> Tensor:
        """Returns the tensor as a function inside of this one has it."""
        inner = Tensor(local or self.local, self.layout, self.shape, self.entries)
        inner.variables = self.variables
        inner.cause = self.cause
        if local is None:
            inner.replicated, inner.parts = self.replicated, dict(self.parts)
        return inner

    def __repr__(self) -> str:
        return f"{self.local.name} {self.dtype.name}{self.shape} {self.layout}"


def summed(tensor: Tensor) -> Tensor:
    """Returns the sum of a partial, once it is made, as a tensor of its own."""
    assert tensor.replicated is not None
    found = Tensor(tensor.replicated, REPLICATED, tensor.shape, tensor.entries)
    found.names = tensor.names
    return found


def known(tensor: Tensor) -> Tensor:
    """Returns a tensor, or the sum of a partial if that is made already."""
    return summed(tensor) if tensor.layout == PARTIAL and tensor.replicated is not None else tensor


def static_shape(shape: tf.TensorShape) -> list[SizeLike | None] | None:
    """Returns what a static shape says of sizes."""
    return None if shape.rank is None else list(shape.as_list())


def size_bytes(tensor: Tensor) -> int | None:
    """Returns the bytes of a global tensor, or None where tracing does not know them."""
    shape = tensor.shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return math.prod(size for size in shape if isinstance(size, int)) * tensor.dtype.size


def array_of(values: Any) -> np.ndarray:
    """Returns an array of Python's numbers, sizes and booleans.

    >>> array_of(np.arange(2)), array_of([Size.of(Symbol("B")), 3])
    (array([0, 1], dtype=object), array([B, 3], dtype=object))
    """
    if isinstance(values, (np.ndarray, np.generic)):
        values = values.tolist()  # Python's own numbers, whose sums with sizes are sizes
    found = np.empty(np.shape(values), object)
    found[...] = values
    return found


def static(tensor: Tensor) -> tf.TensorShape:
    """Returns what tracing knows of the shape of what a replica holds."""
    if tensor.shape is None:
        return tf.TensorShape(None)
    sizes = [size if isinstance(size, int) else None for size in tensor.shape]
    if tensor.sharded is not None:
        sizes[tensor.sharded.axis] = None
    return tf.TensorShape(sizes)
