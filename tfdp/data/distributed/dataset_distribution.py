"""The input of the strategy's inner part: TensorFlow calls it to distribute datasets."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import ProcessGroup
from tfdp.data.distributed import batch_sharding, shard_dataset
from tfdp.data.distributed._tensorflow import (
    DistributedIterator,
    MirroredExtended,
    get_distributed_dataset,
    get_distributed_datasets_from_function,
    input_lib,
    regroup,
)
from tfdp.data.distributed.batches_in_turn import in_turn
from tfdp.data.distributed.shard_dataset import ShardDataset
from tfdp.data.distributed.shard_iterator import plain_iterator
from tfdp.data.distributed.turn_iterator import TurnIterator
from tfdp.data.feed import AbstractFeed, call_of_trainer

_OF_REPLICAS = (
    "`experimental_replication_mode` must be PER_WORKER in `experimental_distribute_dataset`, "
    "which shards each batch into the replicas' shares, but received PER_REPLICA. Leave the option "
    "out, or make a dataset for each replica: `strategy.distribute_datasets_from_function(fn, "
    "options)`, where `fn` is given a `tf.distribute.InputContext`."
)


class DatasetDistribution(MirroredExtended):
    """The part of `DataParallelExtended` that knows where replicas are, and makes their input.

    Attributes:
      processes: The processes that the replicas are in.
    """

    processes: ProcessGroup
    _input_workers_devices: Any

    @property
    def num_replicas(self) -> int:
        """The number of replicas; reading it is not noted, unlike the strategy's property."""
        return self.processes.world_size * self.processes.local_size

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.num_replicas

    @property
    def first_rank(self) -> int:
        """The number of this process' first replica."""
        return self.processes.rank * self.processes.local_size

    @property
    def in_cluster(self) -> bool:
        """Whether other processes read shares too; iterators then compare how far they are."""
        return self.processes.world_size > 1

    @property
    def experimental_between_graph(self) -> bool:
        """Whether several processes build a graph each."""
        return self.in_cluster

    def _in_multi_worker_mode(self) -> bool:
        return self.in_cluster

    @property
    def _ranks(self) -> range:
        return range(self.first_rank, self.first_rank + len(self.worker_devices))

    def _make_input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(
            num_input_pipelines=self.processes.world_size,
            input_pipeline_id=self.processes.rank,
            num_replicas_in_sync=self._num_replicas_in_sync,
        )

    def _input_workers_with_options(self, options: Any = None) -> Any:
        # TensorFlow's method would keep what it makes for PER_REPLICA for all later datasets.
        before = self._input_workers_devices
        try:
            return super()._input_workers_with_options(options)
        finally:
            self._input_workers_devices = before

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if _are_of_replicas(options):
            raise NotImplementedError(_OF_REPLICAS)
        if self.processes.turns is not None and getattr(call_of_trainer(), "trains", False):
            endless = getattr(call_of_trainer(), "endless", False)
            dataset = in_turn(dataset, self.processes.turns, endless)
        distributed = self._distribute_dataset(dataset, options)

        def mapped(fn: Callable[..., Any], key: Any) -> Any:
            of_feed = isinstance(dataset, AbstractFeed)
            own = dataset.with_share_fn(fn, key) if of_feed else dataset.map(fn)
            return self._experimental_distribute_dataset(own, options)

        distributed.mapped = mapped
        return distributed

    def _distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if isinstance(dataset, AbstractFeed):
            return self._distribute_feed(dataset, options)
        batch_sharding.warn_if_small(batch_sharding.declared_size(dataset), self.num_replicas)
        divided = self._divided(dataset)
        if divided is not None:
            return self._distribute(divided, dataset, options, self._end_together(dataset))
        if not (self.in_cluster and isinstance(dataset, tf.data.Dataset)):
            dataset = batch_sharding.without_autotuning(dataset)
            if self.num_replicas == 1 and isinstance(dataset, tf.data.Dataset):
                workers = self._input_workers_with_options(options)
                dataset, options = shard_dataset.read_by_one_iterator(dataset, workers, options)
                workers = self._input_workers_with_options(options)
                strategy = self._container_strategy()
                return get_distributed_dataset(dataset, workers, strategy, options=options)
            return super()._experimental_distribute_dataset(dataset, options)
        # Elements that are no batches go to the replicas in turn, whole.
        size, world_size = self.processes.local_size, self.processes.world_size
        numbered = dataset.enumerate().filter(
            lambda index, _: index // size % world_size == self.processes.rank
        )
        distributed = get_distributed_dataset(
            batch_sharding.without_autotuning(numbered.map(lambda _, element: element)),
            self._input_workers_with_options(options),
            self._container_strategy(),
            options=options,
        )
        self._end_together(dataset)
        elements = dataset.cardinality().numpy()
        distributed._cardinality = batch_sharding.rounds(elements, self.num_replicas)
        # The last round may not reach every rank.
        distributed._enable_get_next_as_optional = True
        return distributed

    def _distribute_feed(self, feed: AbstractFeed, options: Any) -> Any:
        """Lets each process read for its own replicas.

        Raises:
          RankMismatchError: The ranks' pipelines differ, or are not equally far.
        """
        if self.in_cluster:
            self.processes.compare(
                "a pipeline (make it alike on all ranks; each reads its own replicas' examples)",
                feed.alike_on_all_ranks(),
            )
            if self.processes.rank == 0:
                feed.say_what_is_read(self.processes.world_size)
        batch_sharding.warn_if_small(feed.global_batch_size, self.num_replicas)
        shares = feed.shards(self._num_replicas_in_sync, self._ranks)
        return self._distribute(shares, feed, options, end_together=True)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        contexts = [self._make_input_context()]
        if _are_of_replicas(options):
            count = self._num_replicas_in_sync
            contexts = [tf.distribute.InputContext(count, rank, count) for rank in self._ranks]
        datasets: dict[int, Any] = {}

        def dataset_of(context: tf.distribute.InputContext) -> Any:
            made = datasets[context.input_pipeline_id] = dataset_fn(context)
            return batch_sharding.without_autotuning(made)

        distributed = get_distributed_datasets_from_function(
            dataset_of,
            self._input_workers_with_options(options),
            contexts,
            self._container_strategy(),
            options,
        )
        if not self.in_cluster:
            # After an error on one device the other devices find the end, which must not be taken
            # for the end of the data.
            distributed._enable_get_next_as_optional = self._num_replicas_in_sync > 1
            # As many rounds as until no dataset has an element left.
            sizes = [int(dataset.cardinality().numpy()) for dataset in datasets.values()]
            rounds = batch_sharding.rounds(max(sizes), self.num_replicas // len(contexts))
            special = (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY)
            distributed._cardinality = next((size for size in special if size in sizes), rounds)
        elif distributed._cardinality != tf.data.INFINITE_CARDINALITY:
            # Other ranks may have more elements: all ranks go on until no rank has any.
            distributed._cardinality = tf.data.UNKNOWN_CARDINALITY

        def mapped(fn: Callable[..., Any], key: Any) -> Any:
            return self._distribute_datasets_from_function(
                lambda context: datasets[context.input_pipeline_id].map(fn), options
            )

        distributed.mapped = mapped
        return distributed

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        contexts = [
            tf.distribute.experimental.ValueContext(rank, self._num_replicas_in_sync)
            for rank in self._ranks
        ]
        return regroup([value_fn(context) for context in contexts], always_wrap=True)

    def shards(self, iterator: Any) -> Any:
        """Returns the iterator as Keras' step takes it: of `BatchShard`s for several replicas."""
        known = getattr(iterator, "shards", None)
        if known is not None or not isinstance(iterator, DistributedIterator):
            return iterator if known is None else known
        if self.num_replicas == 1:
            return plain_iterator(iterator)
        iterator.shards = TurnIterator.over(iterator)
        return iterator.shards

    def _divided(self, dataset: Any) -> tf.data.Dataset | None:
        return batch_sharding.divide_dataset(
            dataset, self._num_replicas_in_sync, self._ranks, with_fingerprints=self.in_cluster
        )

    # ---- TensorFlow 1

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        self._refuse_in_cluster(
            "make_dataset_iterator(dataset)", "experimental_distribute_dataset(dataset)"
        )
        return super()._make_dataset_iterator(dataset)

    def _make_input_fn_iterator(self, input_fn: Any, **options: Any) -> Any:
        fix = "distribute_datasets_from_function(input_fn)"
        self._refuse_in_cluster("make_input_fn_iterator(input_fn)", fix)
        return super()._make_input_fn_iterator(input_fn, **options)

    def _refuse_in_cluster(self, name: str, instead: str) -> None:
        if self.in_cluster:
            raise NotImplementedError(
                f"{self.processes.said_by}in several processes each must read its own shares, but "
                f"`{name}` of TensorFlow 1 reads the same ones in all of them. Iterate over "
                f"`strategy.{instead}`."
            )

    def _configure(self, session_config: Any = None, cluster_spec: Any = None, *task: Any) -> None:
        if cluster_spec:
            raise NotImplementedError(
                "A strategy must know its cluster when it is made, but `configure` was given "
                "`cluster_spec`. Use tfdp.DataParallelStrategy(cluster_resolver=resolver)."
            )
        super()._configure(session_config)

    def _distribute(
        self,
        shares: tf.data.Dataset,
        source: tf.data.Dataset | AbstractFeed,
        options: Any,
        end_together: bool,
    ) -> Any:
        distributed = ShardDataset.of(
            batch_sharding.without_autotuning(shares),
            self._input_workers_with_options(options),
            self._container_strategy(),
            options,
            source,
        )
        if end_together:
            # Each batch has a share for every replica: no step need ask which replica has one left.
            distributed._enable_get_next_as_optional = False
        return distributed

    def _end_together(self, dataset: tf.data.Dataset) -> bool:
        """Returns whether all ranks have as many batches; compares what the ranks declare of them.

        Raises:
          RankMismatchError: The ranks' batches differ in number or kind.
        """
        if not self.in_cluster:
            return True
        size = int(dataset.cardinality().numpy())
        elements = [
            f"{type(spec).__name__} {getattr(spec, 'dtype', None)} {spec.shape[1:]}"
            if getattr(spec, "shape", None)
            else str(spec)
            for spec in tf.nest.flatten(dataset.element_spec)
        ]
        self.processes.compare(
            "a dataset (each rank takes its share of every global batch: do not shard it by rank)",
            {"elements": elements, "number of batches (-1 endless, -2 unknown)": size},
        )
        return size != tf.data.UNKNOWN_CARDINALITY


class _SumsOfProcesses:
    """A strategy that sums a process' number once, and not once for each of its replicas."""

    def __init__(self, strategy: Any) -> None:
        self.extended = strategy.extended
        self._strategy = strategy

    def reduce(self, reduce_op: Any, value: tf.Tensor, axis: None) -> Any:
        """Returns what `strategy.reduce` does, given the number of each process."""
        others = [tf.zeros_like(value) for _ in self.extended.worker_devices[1:]]
        return self._strategy.reduce(reduce_op, regroup([value, *others], always_wrap=True), axis)


@hook(input_lib, "_calculate_replicas_with_values")
def replicas_with_values(original: Callable[..., Any], strategy: Any, *args: Any) -> Any:
    """Counts the replicas that have a value left.

    TensorFlow gives `reduce` a plain tensor of each process, which tfdp's strategies refuse where a
    process has several replicas: of users' values it does not say whose they are.
    """
    of_tfdp = isinstance(strategy.extended, DatasetDistribution)
    return original(_SumsOfProcesses(strategy) if of_tfdp else strategy, *args)


def _are_of_replicas(options: Any) -> bool:
    """Returns whether `tf.distribute.InputOptions` ask for a pipeline for each replica."""
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    return options is not None and options.experimental_replication_mode == per_replica
