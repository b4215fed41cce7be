"""What is sent in place of gradients: in which dtypes, packed, and noted to count its bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

# A value that is summed: a tensor, or slices, whose sum holds the rows of all ranks.
Value: TypeAlias = tf.Tensor | tf.IndexedSlices

_SUMMED_AS_THEY_ARE = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def map_values(fn: Callable[[tf.Tensor], tf.Tensor], value: Value) -> Value:
    """Applies `fn` to a tensor, or to the values of IndexedSlices."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(fn(value.values), value.indices, value.dense_shape)
    return fn(value)


def as_summed(value: Value) -> Value:
    """Returns numbers in a dtype that engines sum.

    Complex numbers become pairs, along an axis more; other whole numbers int64, whose sums end in
    the same bits; floats of 8 bits float32.

    Raises:
      TypeError: The value holds no numbers.

    >>> as_summed(tf.constant([1 + 2j])).numpy().tolist()
    [[1.0, 2.0]]
    """
    dtype = value.dtype
    if dtype in _SUMMED_AS_THEY_ARE:
        return value
    if dtype.is_complex:
        return map_values(lambda tensor: tf.bitcast(tensor, dtype.real_dtype), value)
    check(dtype)
    wider = tf.int64 if dtype.is_integer else tf.float32
    return map_values(lambda tensor: tf.cast(tensor, wider), value)


def check(dtype: tf.DType) -> None:
    """Raises TypeError unless tensors of a dtype can be summed."""
    if not (dtype.is_integer or dtype.is_floating or dtype.is_complex):
        fix = "Gather it"
        if dtype.is_bool:
            fix = "Cast it first: tf.cast(value, tf.int32) sums to the number of replicas with True"
        raise TypeError(
            f"What is summed over replicas must be numbers, but received a tensor of {dtype.name}. "
            f"{fix}."
        )


def as_before(total: Value, dtype: tf.DType) -> Value:
    """Returns the sum of what `as_summed` has made of values of `dtype`, in that dtype.

    >>> as_before(as_summed(tf.constant([300], tf.int32)), tf.int32).numpy().tolist()
    [300]
    """
    if dtype.is_complex:
        return map_values(lambda tensor: tf.bitcast(tensor, dtype), total)
    return map_values(lambda tensor: tf.cast(tensor, dtype), total)


def precise(dtype: Any) -> tf.DType:
    """Returns the dtype in which means of `dtype` are computed.

    >>> [precise(each).name for each in ("bfloat16", "float64", "int32", "complex64")]
    ['float32', 'float64', 'float64', 'complex64']
    """
    dtype = tf.as_dtype(dtype)
    if dtype.is_complex:
        return dtype
    return tf.float64 if dtype.is_integer or dtype == tf.float64 else tf.float32


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
        sum_: Callable[[Value], Value],
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
        self.sent: list[Value] = []
        self.gathered: list[tf.Tensor] = []
        self.exchanged: list[tf.Tensor] = []
        self._levels = levels_
        self.parts: tuple[Transport, ...] = ()
        self.choices: list[tuple[tf.Tensor, list[Transport]]] = []

    def sum(self, value: Value) -> Value:
        """Returns the sum of `value` over all replicas.

        Args:
          value: A tensor of numbers, or IndexedSlices, whose sum holds the rows of all replicas.

        Raises:
          TypeError: The value holds no numbers.
        """
        number = as_summed(value)
        self.sent.append(number)
        return as_before(self._sum(number), value.dtype)

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
    """Shards the sum of a bucket into the sums of its tensors.

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
Compress: TypeAlias = Callable[[Value, Transport], Value]

# A function that sums the tensors at some positions of a list: see
# `tfdp.compression.UpdateCompression`.
CompressBucket: TypeAlias = Callable[[Sequence[int], Transport], Sequence[tf.Tensor]]
