"""Gradients that travel as 16-bit numbers."""

import dataclasses

import tensorflow as tf

from tfdp.communication.collectives import Transport, Value, map_values
from tfdp.compression.sum_compression import Compression

_DTYPES = ("bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Cast(Compression):
    """Sends gradients of float32 and float64 as 16-bit numbers, and adds them up as such.

    Each bucket is cast before it travels, and its sum is cast back: optimizers see, clip and apply
    gradients of the variables' own dtype. Other dtypes travel as they are.

    Cost: half the bytes of float32, and two passes over the gradients.

    Error: every number is rounded once when it is cast, and every addition of the sum rounds once
    more. A rounding is at most 2**-8 of the number for bfloat16, 2**-11 for float16. A sum over n
    replicas has n roundings, or log2(n) + 1 in a topology that adds pairs: "halving_doubling",
    "tree". Rows of `tf.IndexedSlices` are not added up on the way: one rounding. The error has no
    memory: what a step rounds away is lost.

    bfloat16 has the range of float32. In float16 a gradient beyond 65504 becomes infinite, and one
    below 6e-8 zero; use it with `keras.optimizers.LossScaleOptimizer`, which sees the infinite sum
    on all replicas and skips the step.

    Args:
      dtype: "bfloat16" or "float16".

    Raises:
      ValueError: `dtype` is another.

    >>> alone = Transport(lambda value: value)
    >>> Cast("bfloat16").sum(tf.constant([1.0, 3.1415927]), alone).numpy().tolist()
    [1.0, 3.140625]
    >>> [sent.dtype.name for sent in alone.sent]
    ['bfloat16']
    """

    dtype: str

    def __post_init__(self) -> None:
        # A dtype of TensorFlow equals its name.
        if not isinstance(self.dtype, str) or self.dtype not in _DTYPES:
            raise ValueError(
                f'`Cast` must be given "bfloat16" or "float16", but received {self.dtype!r}. Use '
                'tfdp.compression.Cast("bfloat16"), or compression=None for gradients that travel '
                "as they are."
            )

    @property
    def keeps_range(self) -> bool:
        """Whether the dtype has the range of float32, which bfloat16 has and float16 has not."""
        return self.dtype == "bfloat16"

    def sum(self, value: Value, transport: Transport) -> Value:
        """Returns the sum of the cast values, cast back; see `Compression.sum`."""
        if value.dtype not in (tf.float32, tf.float64):
            return transport.sum(value)
        total = transport.sum(map_values(lambda tensor: tf.cast(tensor, self.dtype), value))
        return map_values(lambda tensor: tf.cast(tensor, value.dtype), total)
