"""Reductions over processes outside of graphs: compared on the board, then summed.

Without an engine that can sum outside of graphs all bytes go through rank 0. That is for debugging
and single numbers, not for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from tfdp.base import threads
from tfdp.cluster.control_channel import ControlChannel, Post
from tfdp.communication.collectives.slices import Value
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
    arrays = [_components(value) for value in values]
    described = [[_described(array) for array in parts] for parts in arrays]
    posted = [all_reduce is None or len(parts) > 1 or not parts[0].size for parts in arrays]
    on_board = [parts for parts, is_posted in zip(arrays, posted, strict=True) if is_posted]
    payload = b"".join(array.tobytes() for parts in on_board for array in parts)
    posts = _all_gather_alike(board, "sum", described, payload, _alike_for_sum)
    received = [_unpacked(post, posted) for post in posts]
    results: list[Value] = []
    for index, value in enumerate(values):
        if all_reduce is not None and not posted[index]:
            results.append(tf.constant(all_reduce(arrays[index][0]), dtype=value.dtype))
            continue
        of_ranks = [parts[index] for parts in received]
        if isinstance(value, tf.IndexedSlices):
            rows = [np.concatenate(parts) for parts in zip(*of_ranks, strict=True)]
            results.append(tf.IndexedSlices(*map(tf.constant, rows), value.dense_shape))
        else:
            total = of_ranks[0][0]
            for (array,) in of_ranks[1:]:
                total = total + array
            results.append(tf.constant(total, dtype=value.dtype))
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


def _components(value: Value) -> list[np.ndarray]:
    if isinstance(value, tf.IndexedSlices):
        return [value.values.numpy(), value.indices.numpy()]
    return [np.asarray(value.numpy())]  # of a tensor itself NumPy makes no bfloat16 scalar


def _described(array: np.ndarray) -> _Array:
    return [array.dtype.name, list(array.shape)]


def _unpacked(post: Post, posted: Sequence[bool]) -> list[list[np.ndarray]]:
    """Returns the arrays of each value; none of a value whose bytes the post does not hold."""
    offset, values = 0, []
    for parts, is_posted in zip(post.value[1], posted, strict=True):
        arrays = []
        for dtype, shape in parts if is_posted else []:
            size = int(np.prod(shape, dtype=np.int64))
            arrays.append(np.frombuffer(post.payload, dtype, size, offset).reshape(shape))
            offset += arrays[-1].nbytes
        values.append(arrays)
    return values


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
