"""Small buffers on the host that a graph writes and Python reads.

They are TensorFlow's raw resources, not `tf.Variable`: in a strategy's scope a variable would have
a copy for each replica, and Keras would track it. Each replica has buffers of its own, because
TensorFlow orders the ops that touch one resource. If two replicas shared a buffer, a conditional of
the second, with collectives in it, would wait for the first's, which waits for the second.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import tensorflow as tf

_NUMBERS = itertools.count(1)

# The handles of buffers that are gone; the next buffer that is made destroys them.
_UNUSED: list[tf.Tensor] = []


class Buffer:
    """A tensor on a CPU that stays from step to step.

    Args:
      device: The full name of a CPU device.
      initial: The first value.
      shape: The shape of all values; None: the shape of `initial`.
    """

    def __init__(self, device: str, initial: np.ndarray, shape: Any = None) -> None:
        self._handle: tf.Tensor | None = None
        self.device = device
        self._dtype = tf.as_dtype(initial.dtype)
        self._shape = initial.shape if shape is None else shape
        self._name = f"tfdp_recording_{next(_NUMBERS)}"
        with tf.init_scope():
            _destroy_unused()
            self._handle = self.handle
            self.set(initial)

    @property
    def handle(self) -> tf.Tensor:
        if self._handle is not None:
            return self._handle
        with tf.device(self.device):
            return tf.raw_ops.VarHandleOp(
                dtype=self._dtype, shape=self._shape, shared_name=self._name
            )

    def by_name(self) -> Buffer:
        """Returns the buffer for functions that capture nothing, while this one lives."""
        named = copy.copy(self)
        named._handle = None
        return named

    def set(self, value: Any) -> None:
        with tf.device(self.device):
            value = tf.cast(tf.convert_to_tensor(value), self._dtype)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    def put(self, index: int, value: tf.Tensor) -> None:
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterNdUpdate(
                ref=self.handle, indices=[[index]], updates=[tf.cast(value, self._dtype)]
            )

    def add(self, index: int, value: Any) -> None:
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterNdAdd(
                ref=self.handle, indices=[[index]], updates=[tf.cast(value, self._dtype)]
            )

    def read(self) -> tf.Tensor:
        with tf.device(self.device):
            return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)

    def __del__(self) -> None:
        # There must be no op here: garbage is collected at any time, also while TensorFlow builds a
        # graph and holds its lock.
        if self._handle is not None:
            _UNUSED.append(self._handle)


def _destroy_unused() -> None:
    while _UNUSED:
        tf.raw_ops.DestroyResourceOp(resource=_UNUSED.pop(), ignore_lookup_error=True)
