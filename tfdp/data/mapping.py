"""What is done to each example: the user's function, its seed, and the check of its shapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# (index, key, example) -> what is batched; index and key are int64 scalars.
ExampleFunction = Callable[[tf.Tensor, tf.Tensor, Any], Any]


def example_function(map_fn: Callable[..., Any] | None) -> ExampleFunction:
    """`map_fn` as the chains call it: a tuple's parts one by one, and a seed if it takes one.

    The seed is an int64 tensor of shape (2,), as `tf.random.stateless_*` takes: a number for the
    epoch, and the example's index.
    """
    if map_fn is None:
        return lambda index, key, example: example
    takes_seed = _takes_seed(map_fn)

    def mapped(index: tf.Tensor, key: tf.Tensor, example: Any) -> Any:
        parts = example if isinstance(example, tuple) else (example,)
        if takes_seed:
            return map_fn(*parts, seed=tf.stack([key, index]))
        return map_fn(*parts)

    return mapped


def with_one_shape(function: ExampleFunction, examples: tf.data.Dataset) -> ExampleFunction:
    """`function`, checked to return what can be batched.

    Nothing is checked where the shapes are known beforehand. Else each must be that of the first
    example, which is computed here.

    Args:
      function: Of an example.
      examples: Of (index, example), at least one.

    Raises:
      Whatever `function` raises when it is traced.
    """
    mapped = examples.map(lambda index, example: function(index, tf.constant(0, tf.int64), example))
    specs = tf.nest.flatten(mapped.element_spec)
    vary = [isinstance(spec, tf.TensorSpec) and not spec.shape.is_fully_defined() for spec in specs]
    if not any(vary):
        return function
    first = next(iter(mapped.take(1)), None)
    if first is None:
        return function  # there is no example: the first epoch says so
    shapes = [
        tuple(leaf.shape) if varies else None
        for leaf, varies in zip(tf.nest.flatten(first), vary, strict=True)
    ]

    def checked(index: tf.Tensor, key: tf.Tensor, example: Any) -> Any:
        result = function(index, key, example)
        result = tuple(result) if isinstance(result, list) else result
        leaves = [
            leaf if shape is None else _of_shape(tf.convert_to_tensor(leaf), shape, index)
            for leaf, shape in zip(tf.nest.flatten(result), shapes, strict=True)
        ]
        return tf.nest.pack_sequence_as(result, leaves)

    return checked


def _of_shape(leaf: tf.Tensor, shape: tuple[int, ...], index: tf.Tensor) -> tf.Tensor:
    expected = tf.constant(shape, tf.int32)
    shared = tf.minimum(tf.rank(leaf), len(shape))
    is_right = tf.logical_and(
        tf.rank(leaf) == len(shape), tf.reduce_all(tf.shape(leaf)[:shared] == expected[:shared])
    )
    text = (
        "Examples must have one shape after `map_fn`, so that they can be batched: "
        f"{list(shape)}, as the first example. Resize, crop or pad in `map_fn`. Received example:"
    )
    check = tf.debugging.Assert(is_right, [text, index, "of shape:", tf.shape(leaf)])
    with tf.control_dependencies([check]):
        leaf = tf.identity(leaf)
    leaf.set_shape(shape)
    return leaf


def _takes_seed(map_fn: Callable[..., Any]) -> bool:
    try:
        return "seed" in inspect.signature(map_fn).parameters
    except ValueError:  # a function of C without a signature
        return False
