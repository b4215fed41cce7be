"""The strategy's inner part in a cluster: some of the replicas are in other processes.

Replicas meet in graphs, by `Communicator`, as within one process. What happens between replica
functions (`reduce`, `gather`, initial values) is done once for each process: by a collective where
a graph is being built, by the board where not.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.collectives import Agreement, Communicator, Probe, Processes, Sequences
from tfdp.collectives.sequence import Call
from tfdp.data.feed import AbstractFeed
from tfdp.errors import RankMismatchError
from tfdp.strategy import input_batches, variables
from tfdp.strategy._tensorflow import (
    CheckpointInitialValue,
    DistributedValues,
    Mirrored,
    get_distributed_dataset,
    get_distributed_datasets_from_function,
    regroup,
)
from tfdp.strategy.extended import DataParallelExtended, check_can_be_joined, divide

# Knuth's multiplicative constant: the processes' seeds are far apart. Rank 0 draws as one process.
_SEED_STRIDE = 2654435761


class ClusterExtended(DataParallelExtended):
    """See the module.

    Args:
      processes: Those of the cluster.
      strategy_number: How many strategies this process made before; alike in all processes.
    """

    def __init__(
        self, *args: Any, processes: Processes, strategy_number: int, **kwargs: Any
    ) -> None:
        self.processes = processes
        self._prefix = f"strategy {strategy_number}"
        self._agreement = Agreement(processes.board, processes.local_size, self._prefix)
        self._sequences_between: weakref.WeakKeyDictionary[tf.Graph, Sequences] = (
            weakref.WeakKeyDictionary()
        )
        super().__init__(*args, **kwargs)
        size = processes.local_size
        self._cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": processes.addresses}),
            task_type="worker",
            task_id=processes.rank,
        )
        self._leaders = tuple(range(0, processes.world_size * size, size))

    in_cluster = True

    # ---- who and where

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.processes.world_size * self.processes.local_size

    @property
    def first_rank(self) -> int:  # type: ignore[override]
        """Of this process' replicas."""
        return self.processes.rank * self.processes.local_size

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.first_rank + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.first_rank

    def _in_multi_worker_mode(self) -> bool:
        return True

    @property
    def experimental_between_graph(self) -> bool:
        """Each process builds its own graph."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints: rank 0."""
        return self.processes.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries: rank 0."""
        return self.processes.rank == 0

    def _make_communicator(self) -> Communicator:
        number = self.processes.board.number
        return Communicator(
            self.worker_devices,
            first_rank=self.first_rank,
            world_size=self._num_replicas_in_sync,
            key_of_group=lambda group: number(f"{self._prefix} group {group}"),
            counters=self.processes.counters,
        )

    def hosts(self) -> list[int]:
        """See `DataParallelExtended.hosts`."""
        return [host for host in self.processes.hosts for _ in self.worker_devices]

    def probe(self) -> Probe:
        """See `DataParallelExtended.probe`."""
        run, board = self._container_strategy().run, self.processes.board
        return Probe(run, self._communicator, self.hosts(), board)

    # ---- running replicas

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if tf.executing_eagerly():
            with self.processes.explained():
                return super()._call_for_each_replica(fn, args, kwargs)
        # Random operations of TensorFlow, seeded by graph and number, must differ from those of
        # the other processes, as they differ between the replicas of one.
        graph = tf.compat.v1.get_default_graph()
        seed = graph.seed
        if seed is not None:
            graph.seed = (seed + self.processes.rank * _SEED_STRIDE) % 2**31
        try:
            return super()._call_for_each_replica(fn, args, kwargs)
        finally:
            graph.seed = seed

    # ---- traces

    def _new_sequences(self) -> Sequences:
        def key_of(call: Call, ordinal: int, keys: int) -> int:
            return self.processes.board.number(f"{self._prefix} {call} number {ordinal}", keys)

        return Sequences(key_of)

    def _begin_step(self) -> None:
        if not tf.executing_eagerly() and self._rank() == self.first_rank:
            self.processes.counters.step()

    def _traced(self, sequences: Sequences, function: str) -> None:
        super()._traced(sequences, function)
        self._agreement.reach(sequences, function)

    # ---- between replica functions

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        mean = reduce_op == tf.distribute.ReduceOp.MEAN
        if isinstance(value, Mirrored):
            if mean:
                return value
            return super()._reduce_to(reduce_op, value, destinations, options)
        everywhere = isinstance(value, DistributedValues) or self.processes.local_size == 1
        count = self._num_replicas_in_sync if everywhere else self.processes.world_size
        total = self._sum_over_processes([_local_sum(value)])[0]
        if mean:
            total = divide(total, count)
        return self._cross_device_ops.broadcast(total, destinations)

    def _sum_over_processes(self, values: list[Any]) -> list[Any]:
        if tf.executing_eagerly():
            return self.processes.sum_eagerly(values)
        return [self._between(functools.partial(self._sum_in_graph, value)) for value in values]

    def of_all_processes(self, number: tf.Tensor) -> tf.Tensor:
        """The number of each process, in order."""
        return self._sum_over_processes(
            [tf.one_hot(self.processes.rank, self.processes.world_size, number, dtype=number.dtype)]
        )[0]

    def _sum_in_graph(self, value: Any) -> Any:
        if isinstance(value, tf.IndexedSlices):
            rows = self._communicator.all_gather_rows
            return tf.IndexedSlices(
                rows(value.values, self._leaders),
                rows(value.indices, self._leaders),
                value.dense_shape,
            )
        return self._communicator.all_reduce(value, self._leaders)

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        check_can_be_joined(value, axis)
        local = value.values if isinstance(value, DistributedValues) else (value,)
        own = tf.concat([tf.convert_to_tensor(part) for part in local], axis)
        if tf.executing_eagerly():
            gathered = self.processes.gather_eagerly(own, axis)
        else:
            gathered = self._between(lambda: self._gather_in_graph(own, axis))
        return self._cross_device_ops.broadcast(gathered, destinations)

    def gather_rows(self, value: Any) -> Any:
        """The rows of all replicas on every process, in order: of tensors, dense or ragged."""
        local = value.values if isinstance(value, DistributedValues) else (value,)
        if not isinstance(local[0], tf.RaggedTensor):
            return self._gather_to_implementation(value, self.worker_devices[0], 0, None)
        own = tf.concat(local, 0)
        gathered = self.gather_rows(own.flat_values)
        for lengths in reversed(own.nested_row_lengths()):
            gathered = tf.RaggedTensor.from_row_lengths(gathered, self.gather_rows(lengths))
        return gathered

    def _gather_in_graph(self, own: tf.Tensor, axis: int) -> tf.Tensor:
        order = list(range(own.shape.rank))
        order[0], order[axis] = order[axis], order[0]
        rows = tf.transpose(own, order) if axis else own
        gathered = self._communicator.all_gather_rows(rows, self._leaders)
        return tf.transpose(gathered, order) if axis else gathered

    def _between(self, collective: Callable[[], Any]) -> Any:
        """Runs `collective` as one of this process, on its first device."""
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._sequences_between:
            self._sequences_between[graph] = self._new_sequences()
        sequences = self._sequences_between[graph]
        with tf.device(self.worker_devices[0]), sequences.going_on(self.first_rank):
            result = collective()
        self._agreement.reach(sequences, getattr(graph, "name", "a graph"))
        return result

    def _eager_reduction(self, values: Sequence[Any]) -> list[Any]:
        return self.processes.sum_eagerly([_local_sum(value) for value in values])

    # ---- variables

    def sums_read_once(self, shared: list[Any]) -> Any:
        """Within it this process reads what `shared` variables hold together, by itself.

        All ranks must enter it: they sum each of the variables here.
        """
        return variables.read_once({id(variable): variable.read_value() for variable in shared})

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Any:
        if replica_id or variables.is_made_alone():
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )
        return lambda: self._of_rank_0(device, kwargs)

    def _of_rank_0(self, device: str, kwargs: dict[str, Any]) -> tf.Tensor:
        """The initial value that rank 0 has for a variable; the others must declare the same."""
        with tf.init_scope(), tf.device(device):
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            if isinstance(value, CheckpointInitialValue):
                value = value.wrapped_value
            if not tf.executing_eagerly() or (tf.is_tensor(value) and not hasattr(value, "numpy")):
                raise ValueError(
                    "In a cluster a variable's initial value must be known when it is made, but "
                    f"that of {kwargs.get('name')!r} is a tensor of a graph. Make the variable "
                    "outside the tf.function, or pass a callable as `initial_value`."
                )
            value = tf.convert_to_tensor(value, kwargs.get("dtype"))
            declared = variables.declared(kwargs, value)
            board = self.processes.board
            payload = tf.io.serialize_tensor(value).numpy() if board.rank == 0 else b""
            first = board.from_first(f"{self._prefix}: a new variable", declared, payload)
            for option, expected in first.value.items():
                if option != "name" and declared[option] != expected:
                    error = RankMismatchError(
                        f"Rank {board.rank}: every rank must make the same variables in the same "
                        f"order, but {option} of {declared['name']!r} is {declared[option]!r} "
                        f"here, and rank 0 has {expected!r} for {first.value['name']!r}. Build "
                        "the same model on all ranks."
                    )
                    board.fail(error)
                    raise error
            if board.rank == 0:
                return value
            return tf.io.parse_tensor(first.payload, value.dtype)

    # ---- input

    def _make_input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(
            num_input_pipelines=self.processes.world_size,
            input_pipeline_id=self.processes.rank,
            num_replicas_in_sync=self._num_replicas_in_sync,
        )

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if not isinstance(dataset, tf.data.Dataset):
            return super()._experimental_distribute_dataset(dataset, options)
        if isinstance(dataset, AbstractFeed):
            return self._distribute_feed(dataset, options)
        input_batches.warn_if_small(input_batches.declared_size(dataset), self.num_replicas)
        divided = self._divided(dataset)
        if divided is not None:
            return self._distribute(divided, dataset, options)
        # Elements that are no batches go to the replicas in turn, whole.
        size, world_size = self.processes.local_size, self.processes.world_size
        numbered = dataset.enumerate().filter(
            lambda index, _: index // size % world_size == self.processes.rank
        )
        distributed = get_distributed_dataset(
            input_batches.without_autotuning(numbered.map(lambda _, element: element)),
            self._input_workers_with_options(options),
            self._container_strategy(),
            options=options,
        )
        self._end_together(dataset)
        elements = dataset.cardinality().numpy()
        distributed._cardinality = input_batches.rounds(elements, self.num_replicas)
        # The last round may not reach every rank.
        distributed._enable_get_next_as_optional = True
        return distributed

    def _end_together(self, dataset: tf.data.Dataset) -> bool:
        """Whether all ranks have as many batches; compares what they say of them.

        Raises:
          RankMismatchError: The ranks' batches differ in number or kind.
        """
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

    def _divided(self, dataset: Any) -> tf.data.Dataset | None:
        return input_batches.divide(dataset, self._num_replicas_in_sync, self._ranks)

    def _distribute_feed(self, feed: AbstractFeed, options: Any) -> Any:
        """Each process reads for its own replicas.

        Raises:
          RankMismatchError: The ranks' pipelines differ, or are not equally far.
        """
        self.processes.compare(
            "a pipeline (make it alike on all ranks; each reads its own replicas' examples)",
            feed.alike_on_all_ranks(),
        )
        if self.processes.rank == 0:
            feed.say_what_is_read(self.processes.world_size)
        return super()._distribute_feed(feed, options)

    @property
    def _ranks(self) -> range:
        return range(self.first_rank, self.first_rank + len(self.worker_devices))

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        distributed = get_distributed_datasets_from_function(
            lambda context: input_batches.without_autotuning(dataset_fn(context)),
            self._input_workers_with_options(options),
            [self._make_input_context()],
            self._container_strategy(),
            options,
        )
        # Other ranks may have more: all go on until no rank has any.
        if distributed._cardinality != tf.data.INFINITE_CARDINALITY:
            distributed._cardinality = tf.data.UNKNOWN_CARDINALITY
        return distributed

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        contexts = [
            tf.distribute.experimental.ValueContext(rank, self._num_replicas_in_sync)
            for rank in self._ranks
        ]
        return regroup([value_fn(context) for context in contexts], always_wrap=True)


def _local_sum(value: Any) -> Any:
    """The sum of a process' own values; slices keep every row."""
    local = value.values if isinstance(value, DistributedValues) else (value,)
    if isinstance(local[0], tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([part.values for part in local], 0),
            tf.concat([part.indices for part in local], 0),
            local[0].dense_shape,
        )
    tensors = [tf.convert_to_tensor(part) for part in local]
    return tensors[0] if len(tensors) == 1 else tf.add_n(tensors)
