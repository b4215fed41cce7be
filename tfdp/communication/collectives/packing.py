"""Buckets of tensors as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def packed(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the elements of a bucket's tensors, one after the other; one tensor as it is.

    >>> packed([tf.constant([[1, 2]]), tf.constant([3])]).numpy().tolist()
    [1, 2, 3]
    """
    if len(tensors) == 1:
        return tensors[0]
    flat = [each if each.shape.rank == 1 else tf.reshape(each, [-1]) for each in tensors]
    return tf.concat(flat, axis=0)


def unpacked(summed: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts the sum of a bucket into the sums of its tensors.

    >>> parts = unpacked(tf.constant([1, 2, 3]), [tf.zeros([1, 2]), tf.zeros([1])])
    >>> [part.numpy().tolist() for part in parts]
    [[[1, 2]], [3]]
    """
    if len(tensors) == 1:
        return [summed]
    parts = tf.split(summed, [tensor.shape.num_elements() for tensor in tensors])
    return [
        part if tensor.shape.rank == 1 else tf.reshape(part, tensor.shape)
        for part, tensor in zip(parts, tensors, strict=True)
    ]
