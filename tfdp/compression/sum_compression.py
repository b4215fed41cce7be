"""The definition of a compression: a way to sum gradients with fewer bytes."""

import abc

from tfdp.communication.collectives import Transport, Value


class Compression(abc.ABC):
    """A rule for summing gradients over replicas. Subclasses are frozen dataclasses.

    >>> import dataclasses
    >>> import tensorflow as tf
    >>> @dataclasses.dataclass(frozen=True)
    ... class Whole(Compression):
    ...     keeps_range = True
    ...
    ...     def sum(self, value, transport):
    ...         return transport.sum(value)
    >>> float(Whole().sum(tf.constant(3.0), Transport(lambda value: 2 * value)))
    6.0
    """

    @property
    @abc.abstractmethod
    def keeps_range(self) -> bool:
        """Whether every float32 travels without overflow, and without turning to zero.

        If not, gradients must travel multiplied by the loss scale.
        """

    @abc.abstractmethod
    def sum(self, value: Value, transport: Transport) -> Value:
        """Returns the sum of `value` over all replicas, the same bits on each of them.

        Args:
          value: A bucket of gradients as a tensor, or `tf.IndexedSlices`, whose sum holds the rows
            of all replicas. Other dtypes than the compression's are summed uncompressed.
          transport: Sums the payload, which is sent in place of `value`.

        Returns:
          A tensor or slices of the dtype of `value`.
        """
