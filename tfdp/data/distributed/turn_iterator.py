"""Iterators over elements that replicas get in turn: those of one round are shares of one batch.

A dataset function, for example, makes such elements. Their examples are counted when the elements
are taken. At the end of the data some replicas may get none; each of these then has a padding row,
as in `shard_iterator`.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import BatchShard, TurnBatchShard
from tfdp.data.distributed import batch_sharding
from tfdp.data.distributed._tensorflow import DistributedIterator
from tfdp.data.distributed.shard_iterator import ShardIterator, ShardIteratorSpec


class TurnIterator(ShardIterator):
    """Gives each replica its `BatchShard` of the next round of another iterator's elements."""

    def get_next(self, name: str | None = None) -> Any:
        """Returns the shares of the next round.

        Raises:
          tf.errors.OutOfRangeError: No replica has an element left.
          tf.errors.OpError: A dataset raised an error.
        """
        optionals = self._next_optionals()
        places, sizes, some = self._places(optionals)
        with tf.control_dependencies([tf.cond(some, lambda: tf.constant(True), self._end)]):
            elements = self._elements(optionals, places, sizes)
        return self._regrouped(elements)

    def get_next_as_optional(self) -> Any:
        """Returns the shares of the next round, or an empty optional."""
        optionals = self._next_optionals()
        places, sizes, some = self._places(optionals)
        elements = self._regrouped(self._elements(optionals, places, sizes))
        return tf.cond(
            some,
            lambda: tf.experimental.Optional.from_value(elements),
            lambda: tf.experimental.Optional.empty(
                tf.nest.map_structure(tf.type_spec_from_value, elements)
            ),
        )

    @property
    def element_spec(self) -> Any:
        """The spec of the elements."""
        return DistributedIterator.element_spec.fget(self)

    @property
    def shards(self) -> ShardIterator:
        """The iterator itself: it gives `BatchShard`s."""
        return self

    @property
    def _spec_class(self) -> type[ShardIteratorSpec]:
        return TurnIteratorSpec

    def _given(self, share: BatchShard) -> BatchShard:
        return share

    def _shard_of(self, element: Any) -> BatchShard:
        return TurnBatchShard(*element)

    def _places(self, optionals: Sequence[Any]) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Returns what is known of a round.

        Returns:
          Each replica's `BatchShard.place` in it; the sizes of its leaves' other axes, where this
          process may have no element to tell them; and whether there is any example.
        """
        extended, first = self._strategy.extended, optionals[0]
        counts = [
            tf.cond(
                optional.has_value(),
                lambda optional=optional: batch_sharding.num_rows(optional.get_value()),
                lambda: tf.constant(0, tf.int64),
            )
            for optional in optionals
        ]
        every = self._fetching.end(tf.stack(counts))
        sizes = _declared_sizes(first.element_spec)
        if extended.in_cluster:
            sizes = tf.cond(
                first.has_value(), lambda: _other_sizes(first.get_value()), lambda: sizes
            )
            told = extended.of_all_processes(tf.concat([every, sizes], 0))
            every = tf.reshape(told[:, : len(counts)], [-1])
            sizes = tf.reduce_max(told[:, len(counts) :], 0)
        before, total = tf.cumsum(every, exclusive=True), tf.reduce_sum(every)
        places = []
        for rank in range(extended.first_rank, extended.first_rank + len(counts)):
            own = tf.stack([tf.constant(rank, tf.int64), every[rank], before[rank], total])
            places.append(tf.concat([own, every], 0))
        return places, sizes, total > 0

    def _elements(
        self, optionals: Sequence[Any], places: list[tf.Tensor], sizes: tf.Tensor
    ) -> list[Any]:
        """Returns for each replica its element, or a padding row, and its place."""
        first = optionals[0]  # has an element if any other has, for replicas get them in turn

        def nothing() -> Any:
            specs = tf.nest.flatten(first.element_spec)
            of_leaves = tf.split(sizes, list(map(batch_sharding.num_other_axes, specs)))
            rows = list(map(batch_sharding.one_row, specs, of_leaves))
            return tf.nest.pack_sequence_as(first.element_spec, rows)

        def of_first() -> Any:
            row = tf.constant(1, tf.int64)
            return tf.nest.map_structure(
                lambda leaf: batch_sharding.first_rows(leaf, row), first.get_value()
            )

        def padding_row() -> Any:
            return tf.cond(first.has_value(), of_first, nothing)

        elements = []
        devices = self._strategy.extended.worker_devices
        for device, optional, place in zip(devices, optionals, places, strict=True):
            with tf.device(device):
                element = tf.cond(
                    optional.has_value(),
                    optional.get_value,
                    nothing if optional is first else padding_row,
                )
                elements.append((element, place))
        return elements


def _declared_sizes(spec: Any) -> tf.Tensor:
    """Returns the sizes of the axes of an element's leaves but the first, int64; 0 if unknown."""
    found: list[int] = []
    for leaf in tf.nest.flatten(spec):
        if batch_sharding.num_other_axes(leaf):
            found += [size or 0 for size in leaf.shape[1:]]
    return tf.constant(found, tf.int64)


def _other_sizes(element: Any) -> tf.Tensor:
    """Returns the same of an element that is there."""
    return tf.concat([batch_sharding.other_sizes(leaf) for leaf in tf.nest.flatten(element)], 0)


class TurnIteratorSpec(ShardIteratorSpec):
    """The spec of a `TurnIterator`, which a traced function knows it by."""

    @property
    def value_type(self) -> type[ShardIterator]:
        """The class that the spec describes."""
        return TurnIterator

    @property
    def _counter_specs(self) -> list[tf.TensorSpec]:
        return []  # each replica reads other elements
