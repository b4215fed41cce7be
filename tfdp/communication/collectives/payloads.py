"""What is sent in place of gradients, noted so that its bytes can be counted, and packed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import tensorflow as tf

from tfdp.communication.collectives import summable

# Tensors, or nests of them.
_Tensors = TypeVar("_Tensors")


class Transport:
    """Sends the payload of a bucket or of slices, and records it.

    Attributes:
      sent: The values that were summed, in their order, as they travelled.
      gathered: The tensors that were sent to all replicas, in their order.
      exchanged: The tensors whose rows were sent to one replica each, in their order.
      rank: The caller's number among the replicas.
      world_size: The number of replicas.
      parts: The transports that `levels` has returned.
      choices: For each call of `choose` the index, and the transports of all ways.

    Args:
      sum_: Sums a tensor or IndexedSlices over all replicas, the same bits on each of them.
      gather_: Stacks the replicas' tensors; None: there is one replica.
      exchange_: Sends row i of a tensor to replica i, and stacks the rows that come; None: there is
        one replica.
      rank: The caller's number among the replicas.
      world_size: The number of replicas.
      levels_: Makes the result of `levels`; None: all replicas are on one host.
      sum_rows_: Does the same as `sum_rows`; None: by an exchange.

    >>> transport = Transport(lambda value: 2 * value)
    >>> float(transport.sum(tf.constant(3.0)))
    6.0
    >>> [float(value) for value in transport.sent]
    [3.0]
    """

    def __init__(
        self,
        sum_: Callable[[summable.Value], summable.Value],
        gather_: Callable[[tf.Tensor], tf.Tensor] | None = None,
        exchange_: Callable[[tf.Tensor], tf.Tensor] | None = None,
        rank: int = 0,
        world_size: int = 1,
        levels_: Callable[[], tuple[Transport, Transport]] | None = None,
        sum_rows_: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        self._sum = sum_
        self._gather = gather_ or (lambda tensor: tensor[tf.newaxis])
        self._exchange = exchange_ or (lambda tensor: tensor)
        self._sum_rows = sum_rows_ or (
            lambda tensor: tf.add_n(tf.unstack(self._exchange(tensor), self.world_size))
        )
        self.rank, self.world_size = rank, world_size
        self.sent: list[summable.Value] = []
        self.gathered: list[tf.Tensor] = []
        self.exchanged: list[tf.Tensor] = []
        self._levels = levels_
        self.parts: tuple[Transport, ...] = ()
        self.choices: list[tuple[tf.Tensor, list[Transport]]] = []

    def sum(self, value: summable.Value) -> summable.Value:
        """Returns the sum of `value` over all replicas.

        Args:
          value: A tensor of numbers, or IndexedSlices, whose sum holds the rows of all replicas.

        Raises:
          TypeError: The value holds no numbers.
        """
        number = summable.as_summed(value)
        self.sent.append(number)
        return summable.as_before(self._sum(number), value.dtype)

    def gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensors of all replicas, a row for each, in their order.

        Sends the tensor's bytes n-1 times per replica.

        Args:
          tensor: Of one known shape on all replicas, of float16/32/64, int32 or int64. 8-bit
            numbers travel as the bits of others (`tf.bitcast`).

        >>> Transport(tf.identity).gather(tf.constant([7, 8])).numpy().tolist()
        [[7, 8]]
        """
        self.gathered.append(tensor)
        return tf.ensure_shape(self._gather(tensor), [self.world_size, *tensor.shape])

    def exchange(self, tensor: tf.Tensor) -> tf.Tensor:
        """Sends row i to replica i, and returns the rows that come, in the order of replicas.

        Sends (n-1)/n of the tensor's bytes per replica.

        Args:
          tensor: Of a dtype that `gather` takes, with a row for each replica.

        >>> Transport(tf.identity).exchange(tf.constant([[7, 8]])).numpy().tolist()
        [[7, 8]]
        """
        self.exchanged.append(tensor)
        return self._exchange(tensor)

    def sum_rows(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum over all replicas of one row each: replica i gets that of rows i.

        Sends (n-1)/n of the tensor's bytes per replica, as `exchange` does.

        Args:
          tensor: As `exchange` takes it.

        >>> Transport(tf.identity).sum_rows(tf.constant([[7, 8]])).numpy().tolist()
        [7, 8]
        """
        self.exchanged.append(tensor)
        return self._sum_rows(tensor)

    def choose(self, index: tf.Tensor, ways: Sequence[Callable[[Transport], _Tensors]]) -> _Tensors:
        """Returns the tensors that one of several functions makes, given a transport.

        Args:
          index: The position of the function that runs, a scalar int32, the same on all replicas.
          ways: The functions, whose results have the same structure and shapes.

        >>> ways = [lambda sends: sends.sum(tf.constant(1.0)), lambda sends: tf.constant(2.0)]
        >>> [float(Transport(tf.negative).choose(tf.constant(i), ways)) for i in (0, 1)]
        [-1.0, 2.0]
        """
        forks = [self._again() for _ in ways]
        self.choices.append((index, forks))
        return tf.switch_case(
            index,
            {
                number: functools.partial(way, fork)
                for number, (way, fork) in enumerate(zip(ways, forks, strict=True))
            },
        )

    def levels(self) -> tuple[Transport, Transport]:
        """Returns the transports within the caller's host, and between hosts.

        The second one's replicas have the caller's place on their hosts.

        Raises:
          ValueError: The hosts have different numbers of replicas.

        >>> within, between = Transport(tf.identity).levels()
        >>> within.world_size, between.world_size
        (1, 1)
        """
        if not self.parts:
            if self._levels is None:
                self.parts = (self._again(), Transport(lambda value: value))
            else:
                self.parts = self._levels()
        within, between = self.parts
        return within, between

    def _again(self) -> Transport:
        """Returns what sends as this one does, and notes apart what that is."""
        does = (self._sum, self._gather, self._exchange)
        return Transport(*does, self.rank, self.world_size, sum_rows_=self._sum_rows)


def packed(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the elements of a bucket's tensors, one after the other; one tensor as it is.

    >>> packed([tf.constant([[1, 2]]), tf.constant([3])]).numpy().tolist()
    [1, 2, 3]
    """
    if len(tensors) == 1:
        return tensors[0]
    flat = [each if each.shape.rank == 1 else tf.reshape(each, [-1]) for each in tensors]
    return tf.concat(flat, axis=0)


def unpacked(summed: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts the sum of a bucket into the sums of its tensors.

    >>> parts = unpacked(tf.constant([1, 2, 3]), [tf.zeros([1, 2]), tf.zeros([1])])
    >>> [part.numpy().tolist() for part in parts]
    [[[1, 2]], [3]]
    """
    if len(tensors) == 1:
        return [summed]
    parts = tf.split(summed, [tensor.shape.num_elements() for tensor in tensors])
    return [
        part if tensor.shape.rank == 1 else tf.reshape(part, tensor.shape)
        for part, tensor in zip(parts, tensors, strict=True)
    ]


# A function that returns the sum of a value, by sums of what it makes of it: see
# `tfdp.compression.Compression`.
Compress: TypeAlias = Callable[[summable.Value, Transport], summable.Value]

# A function that sums the tensors at some positions of a list: see
# `tfdp.compression.UpdateCompression`.
CompressBucket: TypeAlias = Callable[[Sequence[int], Transport], Sequence[tf.Tensor]]
