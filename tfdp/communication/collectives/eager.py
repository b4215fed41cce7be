"""Reductions over processes outside of graphs: compared on the board, then summed.

Without an engine that can sum outside of graphs all bytes go through rank 0. That is for debugging
and single numbers, not for training.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from tfdp.base import threads
from tfdp.cluster.control_channel import ControlChannel, Post
from tfdp.communication.collectives.payloads import Value
from tfdp.errors import CollectiveMismatchError

# The dtype and the shape of an array. Slices have two arrays, of values and of indices.
_Array: TypeAlias = list[str | list[int]]
_Value: TypeAlias = list[_Array]
_Described = TypeVar("_Described")

# A function that returns the sum of an array over the processes, which all call it.
AllReduce: TypeAlias = Callable[[np.ndarray], np.ndarray]


def sums(
    board: ControlChannel, values: Sequence[Value], all_reduce: AllReduce | None = None
) -> list[Value]:
    """Returns the sums of tensors and IndexedSlices over the processes.

    Args:
      board: Carries the shapes, the rows of slices and, without `all_reduce`, all values.
      values: What this process reduces.
      all_reduce: Sums the dense arrays.

    Raises:
      CollectiveMismatchError: Another process reduces something else.
    """
    tensors = [_components(value) for value in values]
    described = [[[each.dtype.name, each.shape.as_list()] for each in parts] for parts in tensors]
    posted = [all_reduce is None or len(parts) > 1 or not tf.size(parts[0]) for parts in tensors]
    on_board = [parts for parts, is_posted in zip(tensors, posted, strict=True) if is_posted]
    texts = [tf.io.serialize_tensor(each).numpy() for parts in on_board for each in parts]
    payload = tf.io.serialize_tensor(tf.constant(texts, tf.string)).numpy()
    posts = _all_gather_alike(board, "sum", described, payload, _alike_for_sum)
    received = [iter(tf.io.parse_tensor(post.payload, tf.string)) for post in posts]
    results: list[Value] = []
    for value, parts, is_posted in zip(values, tensors, posted, strict=True):
        if all_reduce is not None and not is_posted:
            own = np.asarray(parts[0].numpy())  # NumPy makes no scalar of a bfloat16 tensor
            results.append(tf.constant(all_reduce(own), dtype=value.dtype))
            continue
        of_ranks = [[tf.io.parse_tensor(next(r), each.dtype) for each in parts] for r in received]
        if isinstance(value, tf.IndexedSlices):
            rows = [tf.concat(each, 0) for each in zip(*of_ranks, strict=True)]
            results.append(tf.IndexedSlices(*rows, value.dense_shape))
        else:
            results.append(functools.reduce(tf.add, [total for (total,) in of_ranks]))
    return results


def gather(board: ControlChannel, value: tf.Tensor, axis: int) -> tf.Tensor:
    """Concatenates the processes' tensors along `axis`.

    Raises:
      CollectiveMismatchError: Another process reduces something else.
    """
    described = {"dtype": value.dtype.name, "axis": axis, "axes": value.shape.rank}
    payload = tf.io.serialize_tensor(value).numpy()
    posts = _all_gather_alike(board, "gather", described, payload, _equal)
    parts = [tf.io.parse_tensor(post.payload, value.dtype) for post in posts]
    return tf.concat(parts, axis)


def _all_gather_alike(
    board: ControlChannel,
    kind: str,
    described: _Described,
    payload: bytes,
    alike: Callable[[_Described, _Described], bool],
) -> list[Post]:
    value = [kind, described]
    posts = board.all_gather("a reduction outside of graphs", value, payload)
    for rank, post in enumerate(posts):
        if post.value[0] != kind or not alike(post.value[1], described):
            raise CollectiveMismatchError(
                f"Rank {board.rank}: every rank must make the same reductions, but this one "
                f"makes a {kind} of {described} and rank {rank} a {post.value[0]} of "
                f"{post.value[1]}. Let all ranks run the same code.{threads.hint()}"
            )
    return posts


def _components(value: Value) -> list[tf.Tensor]:
    if isinstance(value, tf.IndexedSlices):
        return [value.values, value.indices]
    return [tf.convert_to_tensor(value)]


def _alike_for_sum(one: list[_Value], other: list[_Value]) -> bool:
    """Returns whether two descriptions can be summed: slices may differ in their rows' number."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if len(a) != len(b):
            return False
        rows = 0 if len(a) == 1 else 1
        if any(p[0] != q[0] or p[1][rows:] != q[1][rows:] for p, q in zip(a, b, strict=True)):
            return False
    return True


def _equal(one: object, other: object) -> bool:
    return bool(one == other)
