"""The times at which the buckets of the gradients are there, and at which they are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tfdp.base.recording.tap import Tap


class Watch(Protocol):
    """An observer of the buckets that a reducer sums, in the order in which it starts them."""

    def bucket(
        self, inputs: Sequence[tf.Tensor], sums: Sequence[tf.Tensor], bytes_sent: int | tf.Tensor
    ) -> None:
        """Notes one bucket, or one value that travels alone.

        Args:
          inputs: The bucket's tensors before the sum.
          sums: The bucket's tensors after the sum.
          bytes_sent: The bytes that the caller's rank sends.
        """


class BucketWatch:
    """Records the waiting of a step for its sum over the replicas, and the bytes of the sum.

    The wait at the first bucket, which holds the last layers' gradients, is the time from its
    arrival to its sum. The rank that all others wait for therefore waits least. The exposed
    communication is the time from the last gradient's arrival to the last sum.

    Args:
      tap: The tap of the replica.
      timed: Whether the step waits for the sums. Of others the bytes alone are recorded.

    >>> from tfdp.base.recording.recorder import Recorder
    >>> recorder = Recorder([tf.config.list_logical_devices("CPU")[0].name])
    >>> watch = BucketWatch(Tap(recorder, 0))
    >>> watch.bucket([tf.ones(3)], [tf.ones(3)], bytes_sent=12)
    >>> watch.finish()
    >>> recorder.read().of("bytes_sent").tolist()
    [12.0]
    """

    def __init__(self, tap: Tap, timed: bool = True) -> None:
        self._tap = tap
        self._timed = timed
        self._inputs: list[tf.Tensor] = []
        self._sums: list[tf.Tensor] = []
        self._bytes: list[int | tf.Tensor] = []

    def bucket(
        self, inputs: Sequence[tf.Tensor], sums: Sequence[tf.Tensor], bytes_sent: int | tf.Tensor
    ) -> None:
        """Records the first bucket's wait, and keeps the tensors and bytes of each bucket."""
        if not self._inputs and self._timed:
            self._add_between("first_bucket_wait_seconds", inputs, sums)
        self._inputs += inputs
        self._sums += sums
        self._bytes.append(bytes_sent)

    def finish(self, of_update: bool = True) -> None:
        """Records the exposed communication and the bytes, after the last bucket.

        Args:
          of_update: Whether the buckets were of an update's gradients, and so count as one.
        """
        if of_update:
            self._tap.add("updates", 1)
        self._tap.add("buckets", len(self._bytes))
        if self._inputs and self._timed:
            self._add_between("communication_seconds", self._inputs, self._sums)
        if self._bytes:
            self._tap.add("bytes_sent", sum(tf.cast(count, tf.float64) for count in self._bytes))

    def _add_between(
        self, name: str, before: Sequence[tf.Tensor], after: Sequence[tf.Tensor]
    ) -> None:
        self._tap.add(name, self._tap.instant(after) - self._tap.instant(before))
