"""Datasets of the replicas' shares, to which the strategy turns feeds."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import batch_shard
from tfdp.data.distributed._tensorflow import DistributedDataset, DistributedDatasetSpec
from tfdp.data.distributed.batch_check import BatchCheck
from tfdp.data.distributed.shard_iterator import (
    Counted,
    Counter,
    ShardIterator,
    counter_of,
    counter_specs,
    element_of,
    handles_of,
)
from tfdp.data.feed import AbstractFeed

# As many shares as TensorFlow's iterators over several devices have ready.
_READ_AHEAD = 2


def read_by_one_iterator(
    shares: tf.data.Dataset, input_workers: Any, options: Any
) -> tuple[tf.data.Dataset, Any]:
    """Lets one plain iterator give the shares of a process whose replicas are all CPUs.

    TensorFlow's iterators over the devices of a process trace four functions for each device when
    an epoch begins, and fetch each share through threads and remote calls of its own, which takes
    longer than a step of a small model. Where the shares lie in one memory, none of it is needed.

    Args:
      shares: The shares of the process' own replicas.
      input_workers: TensorFlow's description of where the shares are read.
      options: `tf.distribute.InputOptions` or None. What a user has asked for stays.

    Returns:
      The shares, and the options to distribute them with.
    """
    devices = input_workers.compute_devices_for_worker(0)
    kinds = {tf.DeviceSpec.from_string(device).device_type for device in devices}
    if options is not None or kinds != {"CPU"}:
        return shares, options
    plain = tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )
    # For one device nothing is read ahead but what the user has asked for, as without a strategy.
    return shares if len(devices) == 1 else shares.prefetch(_READ_AHEAD * len(devices)), plain


class ShardDataset(DistributedDataset):
    """A dataset whose iterators give each replica its share of a batch.

    Its elements are the parts of `BatchShard`s, a share and its place first, or the batch where
    there is one replica. In an element, a share without examples holds a padding row: a row of the
    batch. The elements of a feed are `Counted`.
    """

    counter: Counter = None
    feed: AbstractFeed | None = None  # known where the dataset was made, but not in graphs

    @classmethod
    def of(
        cls,
        shares: tf.data.Dataset,
        input_workers: Any,
        strategy: tf.distribute.Strategy,
        options: Any,
        source: tf.data.Dataset | AbstractFeed,
    ) -> ShardDataset:
        """Makes a dataset of the shares of the process' own replicas.

        Args:
          shares: The shares.
          input_workers: TensorFlow's description of where they are read.
          strategy: The strategy whose replicas get them.
          options: `tf.distribute.InputOptions` or None.
          source: The global batches whose shares they are.
        """
        extended: Any = strategy.extended
        feed = source if isinstance(source, AbstractFeed) else None
        counter: Counter = None
        if feed is not None:
            counter = feed.tally
        elif extended.in_cluster:
            counter = BatchCheck.of(*shares.element_spec[1:])
        if extended.num_replicas > 1 and batch_shard.need_shapes(extended.worker_devices):
            shares = batch_shard.told_by_shapes(shares)
        if feed is not None:
            shares = tf.data.Dataset.zip(Counted(shares))
        shares, options = read_by_one_iterator(shares, input_workers, options)
        made = cls(input_workers, strategy, shares, options=options)
        made.counter, made.feed = counter, feed
        # The cardinality counts global batches, as the user does.
        made._cardinality = source.cardinality().numpy()
        return made

    def __iter__(self) -> ShardIterator:
        return ShardIterator.over(super().__iter__(), counter=self.counter, feed=self.feed)

    @property
    def element_spec(self) -> Any:
        """The spec of the elements that iterators give."""
        spec = element_of(self._element_spec)
        return spec[0] if self._strategy.extended.num_replicas > 1 else spec

    @property
    def _type_spec(self) -> ShardDatasetSpec:
        return ShardDatasetSpec(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
        )


class ShardDatasetSpec(DistributedDatasetSpec):
    """The spec of a dataset of shares, which a traced function knows it by."""

    @property
    def value_type(self) -> type[ShardDataset]:
        """The class that the spec describes."""
        return ShardDataset

    @property
    def _component_specs(self) -> list[Any]:
        specs = counter_specs(self._element_spec, self._strategy)
        return [*super()._component_specs, *specs]

    def _to_components(self, value: ShardDataset) -> list[Any]:
        return [*super()._to_components(value), *handles_of(value.counter)]

    def _from_components(self, components: Any) -> ShardDataset:
        count = len(counter_specs(self._element_spec, self._strategy))
        own = len(components) - count
        dataset = ShardDataset(
            input_workers=self._input_workers,
            strategy=self._strategy,
            components=components[:own],
            element_spec=self._element_spec,
            enable_get_next_as_optional=self._enable_get_next_as_optional,
            options=self._options,
            replica_order=self._replica_order,
        )
        dataset.counter = counter_of(components[own:], self._element_spec)
        return dataset
