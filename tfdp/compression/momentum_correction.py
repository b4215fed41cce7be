"""Sparse gradients with the momentum on the replicas, as Deep Gradient Compression has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdp.collectives import Transport
from tfdp.compression.error_feedback import RESIDUAL, kept_if_finite
from tfdp.compression.random_k import RandomK
from tfdp.compression.top_k import TopK
from tfdp.compression.update import Bucket, Slot, Sums, UpdateCompression

_VELOCITY = "velocity"


@dataclasses.dataclass(frozen=True)
class MomentumCorrection(UpdateCompression):
    """Feeds velocities back in place of gradients, so that late numbers come with their momentum.

    Lin et al., "Deep Gradient Compression", arXiv 1712.01887, algorithm 2 with momentum correction
    and momentum factor masking; m is the momentum, u and v begin at zero:

    1. u_t = m u_(t-1) + g_t
    2. v_t = v_(t-1) + u_t
    3. what is applied is the sum of the sent numbers of v_t
    4. where a number was sent, u_t and v_t become zero

    The optimizer must have no momentum of its own: `keras.optimizers.SGD(rate)`. The paper's local
    clipping and its warm-up of the ratio are not in it: clip with the optimizer's
    `global_clipnorm`, and warm up the rate with `tfdp.optimizers.Warmup`. On one replica it is SGD
    with momentum.

    Velocities and residuals are kept as `ErrorFeedback` keeps its residuals: in updates alone, and
    in checkpoints, by their sums for another number of replicas.

    Cost: nothing is sent beside what `inner` sends. Two float32 for each element that is compressed
    on each replica.

    Args:
      inner: `TopK` or `RandomK`.
      momentum: The momentum, at least 0 and below 1.

    Raises:
      TypeError: `inner` sends no single numbers.
      ValueError: `momentum` is out of range.

    >>> MomentumCorrection(TopK(0.001), momentum=0.9).inner.ratio
    0.001
    """

    feeds_back: ClassVar[bool] = True

    inner: UpdateCompression
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not isinstance(self.inner, (TopK, RandomK)):
            raise TypeError(
                "`MomentumCorrection` must be given `TopK` or `RandomK`, which send some numbers "
                f"whole, but received {self.inner!r}. Use MomentumCorrection(TopK(0.01)), or "
                "ErrorFeedback(...) and an optimizer with momentum."
            )
        is_number = isinstance(self.momentum, (int, float)) and not isinstance(self.momentum, bool)
        if not (is_number and 0 <= self.momentum < 1):
            raise ValueError(
                "`momentum` of `MomentumCorrection` must be at least 0 and below 1, but received "
                f"{self.momentum!r}. Use momentum=0.9."
            )

    def takes(self, variables: Sequence[Any]) -> tuple[bool, ...]:
        """Returns what the inner compression takes.

        >>> MomentumCorrection(TopK(0.5)).takes([])
        ()
        """
        return self.inner.takes(variables)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns velocity and residual.

        >>> sorted(MomentumCorrection(TopK(0.5)).slots((3,)))
        ['residual', 'velocity']
        """
        own = Slot(shape, of_replica=True)
        return {_VELOCITY: own, RESIDUAL: own, **self.inner.slots(shape)}

    def sum(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums with velocities and residuals in them, also on one replica.

        >>> slots = {"velocity": tf.constant([2.0]), "residual": tf.constant([1.0])}
        >>> corrected = MomentumCorrection(TopK(1.0), momentum=0.5)
        >>> found = corrected.sum(Bucket.of([4.0], slots=[slots]), Transport(tf.identity))
        >>> float(found.sums[0][0]), float(found.slots[0]["velocity"][0])
        (6.0, 5.0)
        """
        return self.compressed(bucket, transport)

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the inner compression's sums of residuals and velocities.

        >>> slots = {"velocity": tf.constant([2.0]), "residual": tf.constant([1.0])}
        >>> corrected = MomentumCorrection(TopK(1.0), momentum=0.5)
        >>> found = corrected.compressed(Bucket.of([4.0], slots=[slots]), Transport(tf.identity))
        >>> float(found.slots[0]["residual"][0])
        0.0
        """
        velocities = [
            self.momentum * slots[_VELOCITY] + gradient
            for slots, gradient in zip(bucket.slots, bucket.gradients, strict=True)
        ]
        given = [
            slots[RESIDUAL] + velocity
            for slots, velocity in zip(bucket.slots, velocities, strict=True)
        ]
        found = self.inner.sum(
            dataclasses.replace(bucket, gradients=given, feedback=True), transport
        )
        slots = []
        for total, value, velocity, own, before, kept in zip(
            found.sums, given, velocities, found.own, bucket.slots, found.slots, strict=True
        ):
            # One replica sends nothing, and goes on with its velocity.
            after = velocity if transport.world_size == 1 else tf.where(own == 0.0, velocity, 0.0)
            slots.append(
                {
                    **kept,
                    _VELOCITY: kept_if_finite(total, after, before[_VELOCITY]),
                    RESIDUAL: kept_if_finite(total, value - own, before[RESIDUAL]),
                }
            )
        return Sums(found.sums, found.own, slots)
