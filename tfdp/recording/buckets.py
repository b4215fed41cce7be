"""When the buckets of the gradients are there, and when they are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tfdp.recording.tap import Tap


class Watch(Protocol):
    """What a reducer tells of the buckets it sums, in the order in which it starts them."""

    def bucket(
        self, inputs: Sequence[tf.Tensor], sums: Sequence[tf.Tensor], bytes_sent: int | tf.Tensor
    ) -> None:
        """One bucket, or one value that travels alone.

        Args:
          inputs: What is in it, before.
          sums: What came out of it.
          bytes_sent: By the caller's rank.
        """


class BucketWatch:
    """Records what of a sum over replicas the step waits for, and its bytes.

    The wait at the first bucket, which holds the last layers' gradients, is the time from its
    arrival to its sum: the rank that all others wait for waits least. The exposed communication is
    the time from the last gradient's arrival to the last sum.

    Args:
      tap: Of the replica.

    >>> from tfdp.recording.recorder import Recorder
    >>> recorder = Recorder([tf.config.list_logical_devices("CPU")[0].name])
    >>> watch = BucketWatch(Tap(recorder, 0))
    >>> watch.bucket([tf.ones(3)], [tf.ones(3)], bytes_sent=12)
    >>> watch.finish()
    >>> recorder.read().of("bytes_sent").tolist()
    [12.0]
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._inputs: list[tf.Tensor] = []
        self._sums: list[tf.Tensor] = []
        self._bytes: list[int | tf.Tensor] = []

    def bucket(
        self, inputs: Sequence[tf.Tensor], sums: Sequence[tf.Tensor], bytes_sent: int | tf.Tensor
    ) -> None:
        """See `Watch`."""
        if not self._inputs:
            self._add_between("first_bucket_wait_seconds", inputs, sums)
        self._inputs += inputs
        self._sums += sums
        self._bytes.append(bytes_sent)

    def finish(self) -> None:
        """After the last bucket."""
        self._tap.add("updates", 1)
        if self._inputs:
            self._add_between("communication_seconds", self._inputs, self._sums)
            self._tap.add("bytes_sent", sum(tf.cast(count, tf.float64) for count in self._bytes))

    def _add_between(
        self, name: str, before: Sequence[tf.Tensor], after: Sequence[tf.Tensor]
    ) -> None:
        self._tap.add(name, self._tap.instant(after) - self._tap.instant(before))
