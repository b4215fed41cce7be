"""The mapping of each example: the user's function, its seed, and the check of its shapes."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Maps (index, key, example) to the example that is batched; index and key are int64 scalars.
ExampleFunction = Callable[[tf.Tensor, tf.Tensor, Any], Any]


def example_function(map_fn: Callable[..., Any] | None) -> ExampleFunction:
    """Wraps `map_fn` for datasets: it gets a tuple's parts one by one, and a seed if it needs one.

    The seed is an int64 tensor of shape (2,), as `tf.random.stateless_*` takes: a number for the
    epoch, and the example's index. It is given to a parameter `seed` that nothing else fills.
    """
    if map_fn is None:
        return lambda index, key, example: example

    def mapped(index: tf.Tensor, key: tf.Tensor, example: Any) -> Any:
        parts = example if type(example) is tuple else (example,)
        if _needs_seed(map_fn, parts):
            result = map_fn(*parts, seed=tf.stack([key, index]))
        else:
            result = map_fn(*parts)
        # A list becomes a tuple, as in tf.data; lists inside of the result stay.
        return tuple(result) if isinstance(result, list) else result

    return mapped


def check_dense(element_spec: Any, described: str) -> None:
    """Raises ValueError unless all parts of an example are tensors, which can be batched.

    Args:
      element_spec: The spec of the example.
      described: The origin of the example, in words.
    """
    for spec in tf.nest.flatten(element_spec):
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(
                f"All parts of an example must be tensors, but received {type(spec).__name__} from "
                f"{described}. Use `tf.sparse.to_dense` or `to_tensor(shape=...)` in `map_fn`, and "
                "leave None out."
            )


def with_one_shape(function: ExampleFunction, examples: tf.data.Dataset) -> ExampleFunction:
    """Returns `function` with a check that its results can be batched.

    Nothing is checked if the shapes are known beforehand. Otherwise each example must have the
    shape of the first, which is computed here.

    Args:
      function: A function of an example.
      examples: A dataset of (index, example), at least one.

    Raises:
      ValueError: The function returns something else than tensors.
      Exception: The function's own error when it is traced.
    """
    mapped = examples.map(lambda index, example: function(index, tf.constant(0, tf.int64), example))
    check_dense(mapped.element_spec, "`map_fn`")
    specs = tf.nest.flatten(mapped.element_spec)
    vary = [not spec.shape.is_fully_defined() for spec in specs]
    if not any(vary):
        return function
    first = next(iter(mapped.take(1)), None)
    if first is None:
        return function  # there is no example: the first epoch raises the error
    shapes = [
        tuple(leaf.shape) if varies else None
        for leaf, varies in zip(tf.nest.flatten(first), vary, strict=True)
    ]

    def checked(index: tf.Tensor, key: tf.Tensor, example: Any) -> Any:
        result = function(index, key, example)
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


def _needs_seed(map_fn: Callable[..., Any], parts: tuple[Any, ...]) -> bool:
    """Returns whether a parameter `seed` has no value yet; with a default it has one."""
    try:
        signature = inspect.signature(map_fn)
    except ValueError:  # a function of C without a signature
        return False
    if "seed" not in signature.parameters:
        return False
    try:
        signature.bind(*parts)
    except TypeError:
        return True
    return False
