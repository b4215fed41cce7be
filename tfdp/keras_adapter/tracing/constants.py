"""The values of constants in the traced program, also of those that are computed from constants.

Where shapes are fixed, `tf.shape(x)` is a constant, and `tf.shape(x)[0]` a slice of it: a number
that a step may take for that of the batch's examples, though it is that of the replica's own.
"""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.tracing.walk import Place, outside

# Operations on small constants, by which programs compute numbers and shapes.
_FOLDED = frozenset(
    """
    Add AddV2 Cast ConcatV2 Div ExpandDims Fill FloorDiv GatherV2 Identity Maximum Minimum Mul Neg
    Pack Prod Range RealDiv Reshape Size Slice Square Squeeze StridedSlice Sub Sum Tile Unpack
    """.split()  # noqa: SIM905
)
_MOST_ELEMENTS = 2**16


def constant_value(value: Any) -> Any:
    """Returns a value as a NumPy array or a Python number; None if tracing does not know it.

    Unlike `tf.get_static_value` it knows what is computed from constants by slices, products and
    the like, and what a function is given.

    Args:
      value: A tensor, a place of a walk, or a number.

    >>> @tf.function
    ... def rows(x):
    ...     print(tf.get_static_value(tf.shape(x)[0]), constant_value(tf.shape(x)[0]))
    >>> rows(tf.zeros([4, 2]))
    None 4
    """
    place = value if isinstance(value, Place) else Place(value)
    tensor = place.tensor
    known = tf.get_static_value(tensor) if tf.is_tensor(tensor) else tensor
    if known is not None or not tf.is_symbolic_tensor(tensor):
        return known
    op = tensor.op
    if op.type == "Placeholder":
        outer = outside(place)
        return None if outer is None else constant_value(outer)
    if op.type not in _FOLDED or not _is_small(op):
        return None
    inputs = [constant_value(Place(given, place.frame)) for given in op.inputs]
    if any(given is None for given in inputs):
        return None
    with tf.init_scope(), tf.device("CPU:0"):
        dtypes = [given.dtype for given in op.inputs]
        outputs = _run(op, [tf.constant(v, d) for v, d in zip(inputs, dtypes, strict=True)])
    return outputs[tensor.value_index].numpy()


def _is_small(op: Any) -> bool:
    sizes = [tensor.shape.num_elements() for tensor in (*op.inputs, *op.outputs)]
    return all(size is not None and size <= _MOST_ELEMENTS for size in sizes)


def _run(op: Any, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Runs an operation of a graph eagerly, on other inputs."""
    function = getattr(tf.raw_ops, op.type)
    names = list(inspect.signature(function).parameters)
    attributes = [each.name for each in op.op_def.attr if each.name in names]
    rest = iter(inputs)
    given: dict[str, Any] = {}
    # Parameters come in the order of the operation's inputs, some under other names.
    for name, argument in zip(names, op.op_def.input_arg, strict=False):
        count = op.get_attr(argument.number_attr) if argument.number_attr else None
        given[name] = next(rest) if count is None else [next(rest) for _ in range(count)]
    result = function(**given, **{name: op.get_attr(name) for name in attributes})
    return list(result) if isinstance(result, (list, tuple)) else [result]
