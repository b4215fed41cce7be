"""The check that ranks read the same distributed dataset, at the 1st, 2nd, 4th, 8th ... batch.

Each process reads every batch whole and takes its own shares. All batches so far are compared each
time: one that differs is found, at the latest, after as many again, and most steps compare nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import (
    BatchShard,
    batch_fingerprints,
    data_mismatch,
    num_lengths,
)
from tfdp.data.tally import new_handle

_FACTOR = 6364136223846793005  # of a generator modulo 2**64; a multiplication wraps there


class BatchCheck:
    """The fingerprints of all batches that the iterators of a dataset have given.

    Args:
      handle: The handle of a variable: the number of batches, and a number for each of their
        leaves; a graph is given it as the iterator's other parts.
    """

    def __init__(self, handle: tf.Tensor) -> None:
        self.handle = handle

    @classmethod
    def of(cls, place: tf.TensorSpec, known: tf.TypeSpec | tuple[()] = ()) -> BatchCheck:
        """Makes it for elements with such parts of `BatchShard`s."""
        count = place.shape[0] - 4 - num_lengths(known)
        return cls(new_handle(np.zeros([1 + count], np.int64)))

    def add(self, extended: Any, share: BatchShard) -> list[tf.Operation]:
        """Adds a batch, and returns what fails if the ranks have seen other ones.

        Raises:
          tf.errors.InvalidArgumentError: They have, unless a graph is being built.
        """
        names = batch_fingerprints.names(share.rows)
        with tf.device("CPU:0"):
            before = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.int64)
            found = share.place[4 + num_lengths(share.known) :]
            numbers = tf.concat([before[:1] + 1, before[1:] * _FACTOR + found], 0)
            done = tf.raw_ops.AssignVariableOp(resource=self.handle, value=numbers)
            count = numbers[0]
            is_due = tf.equal(tf.bitwise.bitwise_and(count, count - 1), 0)
            if tf.executing_eagerly():
                return _compared(extended, numbers[1:], names) if is_due else []

            def compare() -> tf.Tensor:
                with tf.control_dependencies(_compared(extended, numbers[1:], names)):
                    return tf.constant(True)

            return [done, tf.cond(is_due, compare, lambda: tf.constant(True)).op]


def _compared(extended: Any, numbers: tf.Tensor, names: Sequence[str]) -> list[tf.Operation]:
    return data_mismatch.checks(extended.of_all_processes(numbers), names)
