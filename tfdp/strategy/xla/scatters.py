"""Scatters with indices of 32 bits, such as the gradients of tables are.

XLA's partitioner (jaxlib 0.10.2) pads the indices of a scatter whose rows are cut unevenly with a
number of 32 bits. Where they have 64 it aborts the process: "Check failed: ShapeUtil::
IsScalarWithElementType(value.shape(), primitive_type)".
"""

from typing import Any

import numpy as np

from tfdp.strategy.xla._jax import ir, operations_of, stablehlo

_LARGEST = np.iinfo(np.int32).max


def shrink_indices(module: Any) -> None:
    """Gives the indices of a module's scatters 32 bits.

    What lies outside of the array, which a scatter leaves out, stays outside: indices are clamped
    to -1 and to the largest number. No array has so many rows.
    """
    for operation in operations_of(module, ["stablehlo.scatter"]):
        _shrink(operation)


def _shrink(scatter: Any) -> None:
    place = (len(scatter.operands) - 1) // 2  # inputs, indices, as many updates as inputs
    indices = scatter.operands[place]
    kind = ir.RankedTensorType(indices.type)
    if str(kind.element_type) != "i64":
        return
    small = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(32))
    with ir.InsertionPoint(scatter):
        least, most = _constant(-1), _constant(_LARGEST)
        scatter.operands[place] = stablehlo.convert(small, stablehlo.clamp(least, indices, most))


def _constant(value: int) -> Any:
    array: Any = np.array(value, np.int64)  # a buffer, as Python's types say from 3.12 on
    return stablehlo.constant(ir.DenseElementsAttr.get(array))
