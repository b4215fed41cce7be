"""Sparse gradients with the momentum on the replicas, as Deep Gradient Compression has it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdp.communication.collectives import Transport
from tfdp.compression.error_feedback import RESIDUAL, kept_if_finite
from tfdp.compression.random_k import RandomK
from tfdp.compression.top_k import TopK
from tfdp.compression.update_compression import Bucket, Slot, Sums, UpdateCompression

_VELOCITY = "velocity"


@dataclasses.dataclass(frozen=True)
class MomentumCorrection(UpdateCompression):
    """Feeds velocities back in place of gradients, so that late numbers bring their momentum along.

    Lin et al., "Deep Gradient Compression", arXiv 1712.01887, algorithm 2 with momentum correction
    and momentum factor masking; m is the momentum, u and v begin at zero:

    1. u_t = m u_(t-1) + g_t
    2. v_t = v_(t-1) + u_t
    3. the update applies the sum of the sent numbers of v_t
    4. where a number was sent, u_t and v_t become zero

    Variables that `inner` does not compress, such as biases, normalization and small kernels, have
    only a velocity: replicas sum u_t uncompressed and unmasked, as in SGD with momentum. On one
    replica all variables train so. On several, masking is another algorithm, even at ratio 1.

    The optimizer must have no momentum of its own: `keras.optimizers.SGD(rate)`. The paper's
    warm-up of the ratio is `TopK(ratio, warmup_steps=...)`. With `clipnorm` each replica's gradient
    g_t is clipped before step 1 to the norm clipnorm / sqrt(n), for n replicas (section 3.2). Here,
    as with Keras' argument of that name, the norm is that of a variable's gradient; the paper's is
    that of all together.

    All gradients must reach the update unchanged, dense and as float32. Gradients that bypass it
    would train without momentum, so they are errors: rows (`tf.IndexedSlices`) of a table larger
    than the `largest_table` of `inner`, the gradients of an optimizer with an `apply` of its own,
    and on several replicas those that a `train_step` of your own takes from a tape.

    Velocities and residuals behave as the residuals of `ErrorFeedback`: only updates change them,
    and checkpoints save them, by their sums for another number of replicas.

    Cost: `inner` sends all bytes. Two float32 for each compressed element on each replica, and one
    for each other element.

    Args:
      inner: `TopK` or `RandomK`.
      momentum: The momentum, at least 0 and below 1.
      clipnorm: The norm to which the sum of a variable's gradients would be clipped; None: no clip.

    Raises:
      TypeError: `inner` sends no single numbers.
      ValueError: `momentum` or `clipnorm` is out of range.

    >>> MomentumCorrection(TopK(0.001), momentum=0.9).inner.ratio
    0.001
    """

    feeds_back: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True

    inner: UpdateCompression
    momentum: float = 0.9
    clipnorm: float | None = None

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
        is_number = isinstance(self.clipnorm, (int, float)) and not isinstance(self.clipnorm, bool)
        if self.clipnorm is not None and not (is_number and self.clipnorm > 0):
            raise ValueError(
                "`clipnorm` of `MomentumCorrection` must be above 0, but received "
                f"{self.clipnorm!r}. Use clipnorm=1.0, or leave it out."
            )

    def takes(self, variables: Sequence[Any]) -> tuple[bool, ...]:
        """Returns whether each variable is float32: all of these need a velocity.

        A variable that its gradient overwrites, as Keras' scales of float8, has none.

        >>> import keras
        >>> MomentumCorrection(TopK(0.5)).takes([keras.Variable([1.0], name="bias")])
        (True,)
        """
        return tuple(
            variable.dtype == "float32" and not getattr(variable, "overwrite_with_gradient", False)
            for variable in variables
        )

    def takes_rows_of(self, variable: Any) -> bool:
        """Returns the answer of the inner compression.

        >>> from tfdp.compression import TopK
        >>> table = tf.Variable(tf.zeros([3, 2]))
        >>> MomentumCorrection(TopK(0.5, largest_table=2)).takes_rows_of(table)
        False
        """
        return self.inner.takes_rows_of(variable)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns velocity and residual.

        >>> sorted(MomentumCorrection(TopK(0.5)).slots((3,)))
        ['residual', 'velocity']
        """
        own = Slot(shape, of_replica=True)
        return {_VELOCITY: own, RESIDUAL: own, **self.inner.slots(shape)}

    def slots_of(self, variables: Sequence[Any]) -> list[dict[str, Slot] | None]:
        """Returns velocity and residual; only the velocity if `inner` does not compress a variable.

        >>> import keras
        >>> slots = MomentumCorrection(TopK(0.5)).slots_of([keras.Variable([1.0], name="bias")])
        >>> list(slots[0])
        ['velocity']
        """
        sent = self.inner.takes(variables)
        found = super().slots_of(variables)
        return [
            slots if slots is None or is_sent else {_VELOCITY: slots[_VELOCITY]}
            for slots, is_sent in zip(found, sent, strict=True)
        ]

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of the inner compression's payload.

        >>> from tfdp.compression import TopK
        >>> MomentumCorrection(TopK(0.01)).payload_bytes((50, 30))
        120
        """
        return self.inner.payload_bytes(shape)

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
            self.momentum * slots[_VELOCITY] + self._clipped(gradient, transport.world_size)
            for slots, gradient in zip(bucket.slots, bucket.gradients, strict=True)
        ]
        sparse = [index for index, slots in enumerate(bucket.slots) if RESIDUAL in slots]
        whole = [index for index, slots in enumerate(bucket.slots) if RESIDUAL not in slots]
        sums, own, slots = list(velocities), list(velocities), list(bucket.slots)
        for members, summed in ((sparse, self._summed), (whole, _summed_whole)):
            if members:
                found = summed(_part(bucket, members), [velocities[i] for i in members], transport)
                for position, index in enumerate(members):
                    sums[index] = found.sums[position]
                    own[index] = found.own[position]
                    slots[index] = found.slots[position]
        return Sums(sums, own, slots)

    def _clipped(self, gradient: tf.Tensor, world_size: int) -> tf.Tensor:
        if self.clipnorm is None:
            return gradient
        return tf.clip_by_norm(gradient, self.clipnorm / math.sqrt(world_size))

    def _summed(
        self, bucket: Bucket, velocities: Sequence[tf.Tensor], transport: Transport
    ) -> Sums:
        """Returns the inner compression's sums."""
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


def _part(bucket: Bucket, members: Sequence[int]) -> Bucket:
    """Returns the bucket of the gradients at these positions."""
    return dataclasses.replace(
        bucket,
        gradients=[bucket.gradients[index] for index in members],
        slots=[bucket.slots[index] for index in members],
        numbers=[bucket.numbers[index] for index in members],
    )


def _summed_whole(bucket: Bucket, velocities: Sequence[tf.Tensor], transport: Transport) -> Sums:
    """Returns the sums of velocities, of which nothing is left out: those of one device."""
    sums = list(velocities)
    if transport.world_size > 1:
        flat = tf.concat([tf.reshape(velocity, [-1]) for velocity in velocities], axis=0)
        parts = tf.split(transport.sum(flat), [math.prod(one.shape) for one in velocities])
        sums = [tf.reshape(a, b.shape) for a, b in zip(parts, velocities, strict=True)]
    slots = [
        {
            _VELOCITY: kept_if_finite(total, velocity, before[_VELOCITY]),
            # No such thing is kept: it says to who counts errors that nothing is lost.
            RESIDUAL: tf.zeros_like(velocity),
        }
        for total, velocity, before in zip(sums, velocities, bucket.slots, strict=True)
    ]
    return Sums(sums, velocities, slots)
