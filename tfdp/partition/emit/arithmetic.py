"""The operations that rules write besides the program's own, under TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.partition.emit.writer import Called, Output, Writer

Operand = Any  # an `Output`, or a Python number that becomes a constant of the other's dtype


def _binary(type_: str, **attrs: Any) -> Callable[[Arithmetic, Operand, Operand], Output]:
    def write(self: Arithmetic, a: Operand, b: Operand) -> Output:
        a, b = self._pair(a, b)
        return self._node(type_, [a, b], T=a.dtype, **attrs)

    return write


class Arithmetic:
    """Writes small computations into a function."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def constant(self, value: Any, dtype: tf.DType = tf.int32) -> Output:
        return self.writer.constant(value, dtype)

    def _node(self, type_: str, inputs: Sequence[Output], **attrs: Any) -> Output:
        return self.writer.node(type_, inputs, **attrs)[0]

    def _pair(self, a: Operand, b: Operand) -> tuple[Output, Output]:
        dtype = a.dtype if isinstance(a, Output) else b.dtype
        a, b = (x if isinstance(x, Output) else self.constant(x, dtype) for x in (a, b))
        return a, b

    add = _binary("AddV2")
    subtract = _binary("Sub")
    multiply = _binary("Mul")
    divide = _binary("RealDiv")  # of floats
    floor_divide = _binary("FloorDiv")
    modulo = _binary("FloorMod")
    maximum = _binary("Maximum")
    minimum = _binary("Minimum")
    equal = _binary("Equal", incompatible_shape_error=True)
    greater = _binary("Greater")

    def within(self, a: Operand, begin: Operand, end: Operand) -> Output:
        """Returns whether begin <= a < end."""
        is_before = self.greater(begin, a)
        return self._node(
            "LogicalAnd", [self._node("LogicalNot", [is_before]), self.greater(end, a)]
        )

    def select(self, condition: Output, a: Operand, b: Operand) -> Output:
        """Returns a where the condition holds and b elsewhere; both are broadcast."""
        a, b = self._pair(a, b)
        return self._node("SelectV2", [condition, a, b], T=a.dtype)

    def cast(self, a: Output, dtype: tf.DType) -> Output:
        if a.dtype == dtype:
            return a
        return self._node("Cast", [a], SrcT=a.dtype, DstT=dtype, Truncate=False)

    def bitcast(self, a: Output, dtype: tf.DType) -> Output:
        return self._node("Bitcast", [a], T=a.dtype, type=dtype)

    def identity(self, a: Output) -> Output:
        """Returns a, as the output of an operation of its own."""
        return self._node("Identity", [a], T=a.dtype)

    def shape(self, a: Output, dtype: tf.DType = tf.int32) -> Output:
        """Returns the shape that a has on the replica."""
        return self._node("Shape", [a], T=a.dtype, out_type=dtype)

    def element(self, vector: Output, index: int) -> Output:
        """Returns one entry of the first axis: of a vector a scalar."""
        ends = [self.constant([each]) for each in (index, index + 1, 1)]
        return self._node(
            "StridedSlice",
            [vector, *ends],
            T=vector.dtype,
            Index=tf.int32,
            begin_mask=0,
            end_mask=0,
            ellipsis_mask=0,
            new_axis_mask=0,
            shrink_axis_mask=1,
        )

    def gather(self, a: Output, places: Output) -> Output:
        """Returns the entries of the first axis at some places, which may be one, a scalar."""
        return self._node(
            "GatherV2",
            [a, places, self.constant(0)],
            Tparams=a.dtype,
            Tindices=places.dtype,
            Taxis=tf.int32,
            batch_dims=0,
        )

    def where(self, condition: Output) -> Output:
        """Returns the places at which a vector of truth values holds, int64."""
        return self.reshape(self._node("Where", [condition], T=tf.bool), [-1])

    def pack(self, values: Sequence[Operand], dtype: tf.DType) -> Output:
        """Returns the vector of scalars, each an `Output` or a number."""
        if not any(isinstance(value, Output) for value in values):
            return self.constant(list(values), dtype)
        scalars = [
            self.cast(value, dtype) if isinstance(value, Output) else self.constant(value, dtype)
            for value in values
        ]
        return self.stack(scalars)

    def stack(self, values: Sequence[Output]) -> Output:
        """Returns tensors of one shape along a new first axis."""
        return self._node("Pack", values, N=len(values), T=values[0].dtype, axis=0)

    def concat(self, values: Sequence[Output], axis: int) -> Output:
        if len(values) == 1:
            return values[0]
        inputs = [*values, self.constant(axis)]
        return self._node("ConcatV2", inputs, N=len(values), T=values[0].dtype, Tidx=tf.int32)

    def reshape(self, a: Output, shape: Output | Sequence[Operand]) -> Output:
        to = shape if isinstance(shape, Output) else self.pack(shape, tf.int32)
        return self._node("Reshape", [a, to], T=a.dtype, Tshape=to.dtype)

    def expand(self, a: Output, axis: int) -> Output:
        """Returns a with a further axis, of one entry."""
        return self._node("ExpandDims", [a, self.constant(axis)], T=a.dtype, Tdim=tf.int32)

    def transpose(self, a: Output, order: Sequence[int]) -> Output:
        if list(order) == sorted(order):
            return a
        return self._node("Transpose", [a, self.constant(order)], T=a.dtype, Tperm=tf.int32)

    def slice(self, a: Output, begin: Sequence[Operand], size: Sequence[Operand]) -> Output:
        """Returns a part of a; a size of -1 is all that is left of the axis."""
        ends = [self.pack(begin, tf.int32), self.pack(size, tf.int32)]
        return self._node("Slice", [a, *ends], T=a.dtype, Index=tf.int32)

    def slice_axis(self, a: Output, rank: int, axis: int, begin: Operand, size: Operand) -> Output:
        begins: list[Operand] = [0] * rank
        sizes: list[Operand] = [-1] * rank
        begins[axis], sizes[axis] = begin, size
        return self.slice(a, begins, sizes)

    def sum(self, a: Output, axes: Sequence[int], keep: bool = False) -> Output:
        return self.reduce("Sum", a, axes, keep)

    def reduce(self, type_: str, a: Output, axes: Sequence[int], keep: bool = False) -> Output:
        attrs = {} if type_ in ("All", "Any") else {"T": a.dtype}
        axes_of = self.constant(np.array(axes, np.int32))
        return self._node(type_, [a, axes_of], Tidx=tf.int32, keep_dims=keep, **attrs)

    def zeros_like(self, a: Output) -> Output:
        return self._node("ZerosLike", [a], T=a.dtype)

    def call(
        self, function: str, inputs: Sequence[Output], dtypes: Sequence[tf.DType]
    ) -> list[Output]:
        return self.writer.node(
            "StatefulPartitionedCall",
            inputs,
            Tin=[each.dtype for each in inputs],
            Tout=list(dtypes),
            f=Called(function),
            config="",
            config_proto="",
            executor_type="",
        )
