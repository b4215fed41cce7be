"""A flag that tells whether an iterator may be asked for more, or broke with an error.

An error on one device cancels a step while the other devices wait for their shares, and the shares
that they are given are lost. From then on the devices' buffers are filled and emptied unevenly,
until all devices wait.
"""

from __future__ import annotations

import tensorflow as tf

from tfdp.data.tally import new_handle

BROKEN = (
    "an iterator whose dataset raised an error, or which was interrupted, cannot go on. Make a new "
    "one, with `iter(dataset)`."
)


class Fetching:
    """A flag of an iterator that is up while the iterator fetches, and stays up after an error.

    Args:
      handle: The handle of a boolean variable; a graph is given it as the iterator's other parts.
    """

    def __init__(self, handle: tf.Tensor) -> None:
        self.handle = handle

    @classmethod
    def made(cls) -> Fetching:
        """Makes a new flag, which lives as long as its handle."""
        return cls(new_handle(False))

    def begin(self) -> list[tf.Operation]:
        """Puts the flag up, and returns the operations that fetching must wait for.

        Raises:
          InvalidArgumentError: The flag is up already: an earlier fetch broke. In a graph the
            operations raise it.
        """
        said = [f"The replicas' batches are out of step: {BROKEN}"]
        with tf.device("CPU:0"):  # a GPU would first have to finish what it was given
            up = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.bool)
            if tf.executing_eagerly():
                tf.debugging.Assert(~up, said)
                return self._set(True)
            # In a graph `tf.debugging.Assert` puts a conditional around it, which each step runs.
            with tf.control_dependencies([tf.raw_ops.Assert(condition=~up, data=said)]):
                return self._set(True)

    def end(self, value: tf.Tensor) -> tf.Tensor:
        """Returns `value`, and takes the flag down: all devices have what they asked for."""
        with tf.control_dependencies([value]), tf.control_dependencies(self._set(False)):
            return tf.identity(value)

    def _set(self, up: bool) -> list[tf.Operation]:
        with tf.device("CPU:0"):
            done = tf.raw_ops.AssignVariableOp(resource=self.handle, value=up)
        return [] if done is None else [done]
