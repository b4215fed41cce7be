"""Compressions that add the loss of one update to the next (error feedback)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import Transport
from tfdp.compression.update_compression import Bucket, Slot, Sums, UpdateCompression, poison

#: The name of the slot of `ErrorFeedback` that holds what was lost.
RESIDUAL = "residual"


@dataclasses.dataclass(frozen=True)
class ErrorFeedback(UpdateCompression):
    """Adds to each gradient the loss of earlier compressions, the residual.

    With gradients g_t, residuals e_t and a compression C (Karimireddy et al., "Error Feedback Fixes
    SignSGD and other Gradient Compression Schemes", arXiv 1901.09847, algorithm 2, without the
    learning rate, as Vogels et al., arXiv 1905.13727, have it):

    1. p_t = g_t + e_t
    2. the update applies the sum of C(p_t) over the replicas
    3. e_(t+1) = p_t - C(p_t), by each replica for itself

    So nothing is lost, only late: over any number of updates the applied sums and the residuals add
    up to all gradients. When the owner of a chunk quantizes its sum, it adds the loss to its own
    residual.

    Residuals belong to an optimizer and a variable, and are local to a replica. If loss scaling
    skips an update, they stay as they are, because they belong to updates that happened. Without a
    loss scale, a gradient that is not finite reaches all replicas as such, and the variable's
    residuals stay as they are, too. `tfdp.callbacks.Checkpoint` saves residuals. On another number
    n of replicas each gets 1/n of their sum; one replica alone applies the sum in its next update.
    Model files hold no residuals.

    Cost: no more bytes are sent. A float32 for each compressed element on each replica, and two
    passes.

    Args:
      inner: The compression, such as `TopK(0.01)`.

    Raises:
      TypeError: `inner` is no lossy compression of updates, or feeds back by itself, as
        `MomentumCorrection` does.

    >>> from tfdp.compression import TopK
    >>> ErrorFeedback(TopK(0.01)).inner.ratio
    0.01
    """

    feeds_back: ClassVar[bool] = True

    inner: UpdateCompression

    def __post_init__(self) -> None:
        if isinstance(self.inner, UpdateCompression) and self.inner.feeds_back:
            raise TypeError(
                "`ErrorFeedback` must be given a compression that feeds nothing back by itself, "
                f"but received {self.inner!r}. Use {self.inner!r} without ErrorFeedback around it."
            )
        if not isinstance(self.inner, UpdateCompression):
            raise TypeError(
                "`ErrorFeedback` must be given a compression such as `TopK`, `Int8`, `Sign`, "
                f"`RandomK`, `PowerSGD` or `BetweenHosts`, but received {self.inner!r}. Use "
                "ErrorFeedback(TopK(0.01)); `Cast`, whose roundings are small, is used by itself."
            )

    def takes(self, variables: Sequence[Any]) -> tuple[bool, ...]:
        """Returns the answers of the inner compression.

        >>> from tfdp.compression import TopK
        >>> ErrorFeedback(TopK(0.5)).takes([])
        ()
        """
        return self.inner.takes(variables)

    def takes_rows_of(self, variable: Any) -> bool:
        """Returns the answer of the inner compression.

        >>> from tfdp.compression import TopK
        >>> ErrorFeedback(TopK(0.5, largest_table=2)).takes_rows_of(tf.Variable(tf.zeros([3, 2])))
        False
        """
        return self.inner.takes_rows_of(variable)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns the residual, and the slots of the inner compression.

        >>> from tfdp.compression import PowerSGD
        >>> slots = ErrorFeedback(PowerSGD(2)).slots((30, 20))
        >>> slots[RESIDUAL].shape, slots["factor"].shape
        ((30, 20), (20, 2))
        """
        return {RESIDUAL: Slot(shape, of_replica=True), **self.inner.slots(shape)}

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of the inner compression's payload.

        >>> from tfdp.compression import TopK
        >>> ErrorFeedback(TopK(0.01)).payload_bytes((50, 30))
        120
        """
        return self.inner.payload_bytes(shape)

    def sum(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums with the residuals in them, also on one replica.

        >>> from tfdp.compression import TopK
        >>> bucket = Bucket.of([1.0, 2.0], slots=[{"residual": tf.constant([0.5, 0.0])}])
        >>> found = ErrorFeedback(TopK(0.5)).sum(bucket, Transport(tf.identity))
        >>> found.sums[0].numpy().tolist()
        [1.5, 2.0]
        """
        return self.compressed(bucket, transport)

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the inner compression's sums of gradients and residuals.

        >>> from tfdp.compression import TopK
        >>> bucket = Bucket.of([1.0, 2.0], slots=[{"residual": tf.constant([0.5, 0.0])}])
        >>> alone = Transport(tf.identity)
        >>> ErrorFeedback(TopK(0.5)).compressed(bucket, alone).slots[0]["residual"].shape
        TensorShape([2])
        """
        corrected = _corrected(bucket)
        return _kept(bucket, corrected, self.inner.sum(corrected, transport))

    @property
    def sums_parts(self) -> bool:
        """Whether the inner compression has `compressed_parts`."""
        return self.inner.sums_parts

    def compressed_parts(
        self, bucket: Bucket, shardings: Sequence[Sharding], transport: Transport
    ) -> Sums:
        """Returns the inner compression's parts of the sums of gradients and residuals.

        A residual covers the whole gradient, because the replica rounds all of its shards. No
        replica has the whole sum. So a replica sends a gradient that is not finite as such in all
        shards, and all replicas leave their residuals as they are.

        >>> from tfdp.compression import Int8
        >>> bucket = Bucket.of([1.0, 2.0], slots=[{"residual": tf.constant([0.5, 0.0])}])
        >>> sharding, alone = Sharding((2,), axis=0, bounds=(0, 2)), Transport(tf.identity)
        >>> found = ErrorFeedback(Int8(block=4)).compressed_parts(bucket, [sharding], alone)
        >>> found.own[0].shape, found.slots[0]["residual"].shape
        (TensorShape([2]), TensorShape([2]))
        """
        corrected = _corrected(bucket)
        known = [gradient + poison(gradient) for gradient in corrected.gradients]
        given = dataclasses.replace(corrected, gradients=known)
        return _kept(bucket, corrected, self.inner.compressed_parts(given, shardings, transport))


def _corrected(bucket: Bucket) -> Bucket:
    """Returns a bucket of gradients with their residuals."""
    pairs = zip(bucket.gradients, bucket.slots, strict=True)
    corrected = [gradient + slots[RESIDUAL] for gradient, slots in pairs]
    return dataclasses.replace(bucket, gradients=corrected, feedback=True)


def _kept(bucket: Bucket, corrected: Bucket, found: Sums) -> Sums:
    """Returns what an inner compression has found, with the new residuals."""
    slots = [
        {**kept, RESIDUAL: kept_if_finite(total, value - own, before[RESIDUAL])}
        for total, value, own, before, kept in zip(
            found.sums, corrected.gradients, found.own, bucket.slots, found.slots, strict=True
        )
    ]
    return Sums(found.sums, found.own, slots)


def kept_if_finite(total: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns the new value; the old one if the sum, alike on all replicas, is not finite."""
    # A conditional passes one of them on, where `tf.where` makes a pass over both.
    return tf.cond(tf.reduce_all(tf.math.is_finite(total)), lambda: new, lambda: old)
