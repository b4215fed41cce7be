"""What TensorFlow calls on a strategy: replicas that compute, reduce and update by themselves."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.collectives import Communicator, Probe, Reducer, Sequences, map_values
from tfdp.data import Pipeline
from tfdp.keras_adapter.provenance import Mark, mark
from tfdp.recording import Watch
from tfdp.strategy import input_batches, pipelines, variables
from tfdp.strategy._tensorflow import (
    VARIABLE_POLICY_MAPPING,
    DistributedIterator,
    Function,
    GraphOrParentsInXlaContext,
    Mirrored,
    MirroredExtended,
    ReductionToOneDevice,
    SingleDevice,
    control_status_ctx,
    create_mirrored_variable,
    tf_convert,
)
from tfdp.strategy.share_iterators import ShareDataset
from tfdp.strategy.turn_iterators import TurnIterator
from tfdp.topology import Topology


class DataParallelExtended(MirroredExtended):
    """The strategy's inner part. No replica waits for another while tracing.

    `_use_merge_call()` is False, so that TensorFlow and Keras let every replica act by itself; this
    makes a conditional around an update legal, and its collectives run inside.
    """

    # The mark by which the Keras adapter knows the strategy.
    is_tfdp = True

    # Whether some of the replicas are in other processes.
    in_cluster = False

    def __init__(
        self,
        container: tf.distribute.Strategy,
        devices: Sequence[str],
        topology: Topology,
        bucket_bytes: int,
        around_replicas: Callable[..., contextlib.AbstractContextManager[Callable[..., Any]]],
    ) -> None:
        self._around_replicas = around_replicas
        self._lifted: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        super().__init__(container, devices=list(devices), cross_device_ops=ReductionToOneDevice())
        self._communicator = self._make_communicator()
        self.use_topology(topology, bucket_bytes)

    identical_writes = staticmethod(variables.identical_writes)
    summed_on_read = staticmethod(variables.summed_on_read)
    made_alone = staticmethod(variables.made_alone)

    def _make_communicator(self) -> Communicator:
        return Communicator(self.worker_devices)

    def use_topology(self, topology: Topology, bucket_bytes: int) -> None:
        """From now on, what is traced sums its buckets so."""
        self.topology, self.bucket_bytes = topology, bucket_bytes
        self._reducer = Reducer(self._communicator, topology, self.hosts(), bucket_bytes)

    def hosts(self) -> list[int]:
        """For each rank the index of its host."""
        return [0] * len(self.worker_devices)

    def probe(self) -> Probe:
        """What measures the links; all ranks must use it."""
        return Probe(self._container_strategy().run, self._communicator, self.hosts(), None)

    first_rank = 0  # of this process' replicas

    @property
    def num_replicas(self) -> int:
        """Number of replicas; unlike the strategy's property, asking for it is not noted."""
        return self._num_replicas_in_sync

    def _make_collective_ops_with_fallbacks(self) -> ReductionToOneDevice:
        return ReductionToOneDevice()

    def _use_merge_call(self) -> bool:
        return False

    def _get_cross_device_ops(self, value: Any) -> ReductionToOneDevice:
        return self._cross_device_ops

    # ---- variables

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        kwargs = variables.placement(kwargs)
        colocate_with = kwargs.pop("colocate_with", None)
        if isinstance(colocate_with, SingleDevice):
            with tf.device(colocate_with.device):
                return next_creator(**kwargs)
        devices: Any = getattr(colocate_with, "_devices", self._devices)

        def create_copies(**kwargs: Any) -> list[Any]:
            copies: list[Any] = []
            for index, device in enumerate(devices):
                with tf.device(device):
                    kwargs["initial_value"] = self._get_variable_creator_initial_value(
                        index, device, copies[0] if copies else None, **kwargs
                    )
                    if index:
                        kwargs["name"] = f"{copies[0].name.split(':')[0]}/replica_{index}/"
                    copies.append(next_creator(**kwargs))
            return copies

        variable = create_mirrored_variable(
            self._container_strategy(),
            create_copies,
            variables.CLASS_MAPPING,
            VARIABLE_POLICY_MAPPING,
            **kwargs,
        )
        if isinstance(variable, variables.ReplicaSyncOnReadVariable):
            for copy in variable.values:
                mark(copy.handle, Mark.STATE)
        return variable

    # ---- running replicas

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if isinstance(fn, Function):
            return self._lift(fn)(*args, **kwargs)
        if not tf.executing_eagerly():
            fn = tf_convert(fn, control_status_ctx())
        sequences = self._new_sequences()

        @tf.autograph.experimental.do_not_convert
        def replica(*args: Any, **kwargs: Any) -> Any:
            with sequences.replica(self._rank()), _after(args, kwargs):
                self._begin_step()
                return run(*args, **kwargs)

        try:
            with self._around_replicas(fn, self._container_strategy()) as run:
                result = super()._call_for_each_replica(replica, args, kwargs)
        except RuntimeError as error:
            # TensorFlow's own error says only that the replicas' calls differ.
            if "different number of" in str(error):
                sequences.check()
            raise
        self._traced(sequences, getattr(fn, "__name__", "a replica function"))
        return result

    def _new_sequences(self) -> Sequences:
        return Sequences()

    def _begin_step(self) -> None:
        """Called in each replica function, before all else."""

    def _traced(self, sequences: Sequences, function: str) -> None:
        """Called when all local replicas' functions are traced."""
        sequences.check()

    def _lift(self, fn: Function) -> Function:
        # A tf.function that is run eagerly: all replicas go into one graph with its options.
        if fn not in self._lifted:
            python_function = fn.python_function

            def run_all(*args: Any, **kwargs: Any) -> Any:
                return self._call_for_each_replica(python_function, args, kwargs)

            self._lifted[fn] = fn._clone(python_function=functools.wraps(python_function)(run_all))
        return self._lifted[fn]

    @staticmethod
    def _rank() -> int:
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        return int(tf.get_static_value(rank)) if tf.is_tensor(rank) else int(rank)

    # ---- reducing

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if self._num_replicas_in_sync == 1:
            return value
        summed = self.sum_prepared(tf.nest.flatten(value), merge_rows=True)
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            summed = [divide(tensor, self._num_replicas_in_sync) for tensor in summed]
        return tf.nest.pack_sequence_as(value, summed)

    def sum_prepared(
        self,
        values: Sequence[Any],
        prepare: Callable[[tf.Tensor], tf.Tensor] | None = None,
        merge_rows: bool = False,
        watch: Watch | None = None,
    ) -> list[Any]:
        """Sums `values` over replicas, in a replica function; no gradient flows through.

        Args:
          values: Tensors and IndexedSlices.
          prepare: Applied to what is sent, elementwise: once per bucket in a graph.
          merge_rows: Whether slices may be summed by row before they travel.
          watch: Is told of what is sent in a graph.
        """
        if tf.executing_eagerly():
            prepared = values if prepare is None else [map_values(prepare, v) for v in values]
            return self._eager_sum(list(prepared))
        self._check_can_communicate()
        with tf.name_scope("tfdp_all_reduce"):
            return self._reducer.all_reduce(values, self._rank(), prepare, merge_rows, watch)

    def broadcast_from_first(self, value: Any, dtype: tf.DType) -> Any:
        """Replica 0's `value` on every replica, in a replica function."""
        if self._num_replicas_in_sync == 1:
            return value
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(
                self.broadcast_from_first(value.values, value.values.dtype),
                self.broadcast_from_first(value.indices, value.indices.dtype),
                value.dense_shape,
            )
        value = tf.convert_to_tensor(value, None if tf.is_tensor(value) else dtype)
        if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
            raise TypeError(
                "A variable with aggregation ONLY_FIRST_REPLICA must hold numbers or booleans to "
                f"be written in a replica, but received {value.dtype.name}. Write it outside "
                "`strategy.run`."
            )
        if tf.executing_eagerly():
            number = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
            (summed,) = self._eager_sum([number if self._rank() == 0 else tf.zeros_like(number)])
            return tf.cast(summed, value.dtype)
        self._check_can_communicate()
        return self._reducer.broadcast(value, self._rank())

    def _eager_sum(self, flat: list[Any]) -> list[Any]:
        # Eagerly the replicas' threads take turns and meet in `merge_call`.
        def merge(strategy: tf.distribute.Strategy, *values: Any) -> list[Any]:
            return self._eager_reduction(values)

        # A copy each: one tensor in all replicas would be taken for a value to be summed once.
        copies = tuple(map_values(tf.identity, value) for value in flat)
        return list(tf.distribute.get_replica_context().merge_call(merge, args=copies))

    def _eager_reduction(self, values: Sequence[Any]) -> list[Any]:
        """The sums of distributed values, on the devices of each."""
        total = tf.distribute.ReduceOp.SUM
        return [self._cross_device_ops.reduce(total, value, value) for value in values]

    def _check_can_communicate(self) -> None:
        if getattr(threading.current_thread(), "in_eager", False):
            raise RuntimeError(
                "Replicas that run eagerly can only communicate eagerly, but a collective is "
                "inside a tf.function that one replica calls. Decorate the function that calls "
                "`strategy.run` with `tf.function`, or leave `run_eagerly` out."
            )
        on_cpu = all(":CPU:" in device for device in self.worker_devices)
        if on_cpu and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise RuntimeError(
                "Replicas must communicate outside XLA on CPU, where XLA has no collective, but a "
                "collective is inside a function that is compiled (`jit_compile=True`). In a "
                "model, use jit_compile=False, or make BatchNormalization(synchronized=False)."
            )

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if isinstance(value, Mirrored) and reduce_op == tf.distribute.ReduceOp.MEAN:
            return value
        return super()._reduce_to(reduce_op, value, destinations, options)

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        check_can_be_joined(value, axis)
        return super()._gather_to_implementation(value, destinations, axis, options)

    # ---- input

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if isinstance(dataset, Pipeline):
            return self._distribute_pipeline(dataset, options)
        input_batches.warn_if_small(input_batches.declared_size(dataset), self.num_replicas)
        divided = self._divided(dataset)
        if divided is None:
            dataset = input_batches.without_autotuning(dataset)
            return super()._experimental_distribute_dataset(dataset, options)
        return self._distribute(divided, dataset, options)

    def _distribute_pipeline(self, pipeline: Pipeline, options: Any) -> Any:
        size = pipeline.pipeline_options.global_batch_size
        input_batches.warn_if_small(size, self.num_replicas)
        shares = self._shares(pipeline)
        return pipelines.distribute(
            pipeline,
            self._input_workers_with_options(options),
            self._container_strategy(),
            shares,
            options,
        )

    def _shares(self, pipeline: Pipeline) -> tf.data.Dataset:
        shares = pipeline.cuts(self._num_replicas_in_sync, self._ranks)
        return input_batches.without_autotuning(shares)

    @property
    def _ranks(self) -> range:
        """Of this process' replicas."""
        return range(self._num_replicas_in_sync)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        distributed = super()._distribute_datasets_from_function(
            lambda context: input_batches.without_autotuning(dataset_fn(context)), options
        )
        # An error on one device shall not be taken for the end, which others find after it.
        distributed._enable_get_next_as_optional = self._num_replicas_in_sync > 1
        distributed._cardinality = input_batches.rounds(distributed.cardinality, self.num_replicas)
        return distributed

    def cuts(self, iterator: Any) -> Any:
        """The iterator as Keras' step takes it: giving `Cut`s, where there are several replicas."""
        known = getattr(iterator, "cuts", None)
        if known is not None or self.num_replicas == 1:
            return iterator if known is None else known
        if not isinstance(iterator, DistributedIterator):
            return iterator
        iterator.cuts = TurnIterator.over(iterator)
        return iterator.cuts

    def split_for_step(self, batch: Any) -> Any:
        """A whole batch as Keras' step takes it on the replicas: a `Cut`."""
        return input_batches.split_for_step(batch, self._container_strategy())

    def _divided(self, dataset: Any) -> tf.data.Dataset | None:
        return input_batches.divide(dataset, self._num_replicas_in_sync)

    def _distribute(self, divided: tf.data.Dataset, dataset: tf.data.Dataset, options: Any) -> Any:
        distributed = ShareDataset(
            self._input_workers_with_options(options),
            self._container_strategy(),
            input_batches.without_autotuning(divided),
            options=options,
        )
        # In global batches, as the user counts.
        distributed._cardinality = dataset.cardinality().numpy()
        if self._end_together(dataset):
            # Each batch has a share for every replica: no step need ask who has one left.
            distributed._enable_get_next_as_optional = False
        return distributed

    def _end_together(self, dataset: tf.data.Dataset) -> bool:
        return True


def _after(args: Any, kwargs: Any) -> Any:
    """Lets nothing run in a graph before the arguments are there, which may be a batch.

    Else the step that finds the data at its end would count in `iterations`, which need no batch.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    tensors = itertools.chain.from_iterable(map(_tensors, tf.nest.flatten((args, kwargs))))
    return tf.control_dependencies([each for each in tensors if tf.is_symbolic_tensor(each)])


def _tensors(leaf: Any) -> list[Any]:
    if isinstance(leaf, tf.IndexedSlices):  # which may be made of lists
        return [leaf.values, leaf.indices, leaf.dense_shape]
    return tf.nest.flatten(leaf, expand_composites=True)


def check_can_be_joined(value: Any, axis: int) -> None:
    """Raises ValueError if this process' values have different ranks, or no such axis."""
    shapes = [tf.TensorShape(local.shape) for local in getattr(value, "values", (value,))]
    ranks = {shape.rank for shape in shapes if shape.rank is not None}
    if len(ranks) > 1 or any(not -rank <= axis < rank for rank in ranks):
        raise ValueError(
            f"`gather` must be given values with the same number of axes and an axis {axis} on all "
            f"replicas, but received the shapes {', '.join(map(str, shapes))}. Bring them into one "
            "form first, such as tf.reshape(value, [-1, size])."
        )


def divide(value: Any, count: int) -> Any:
    """A tensor or IndexedSlices over a number."""
    return map_values(lambda tensor: tensor / tf.cast(count, tensor.dtype), value)
