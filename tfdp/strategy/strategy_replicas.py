"""The strategy's replicas, which implement `tfdp.communication.replicas.Replicas`."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import CompressBucket, Reducer, Transport, map_values
from tfdp.communication.engines.host import ArrivalSums, ClosedSum
from tfdp.communication.replicas import ProcessGroup, Rows, Value, one_device
from tfdp.compression import Compression
from tfdp.compression.exchange import ExchangeOptions
from tfdp.strategy import mirrored_variables, sharded_variable
from tfdp.strategy._tensorflow import GraphOrParentsInXlaContext, ReductionToOneDevice
from tfdp.strategy.cross_process import CrossProcess, local_sum


class StrategyReplicas:
    """The replicas on this process' devices, and those of the other processes.

    In graphs they meet by collectives. Eagerly their threads take turns and meet in `merge_call`.

    Attributes:
      reducer: Sums the replicas' buffers in graphs.
      arrivals: Sums over those that come first; None: all wait for all.

    Args:
      devices: The devices of this process' replicas.
      processes: All processes.
      between: Sums values over processes, outside of replica functions.
      reducer: Sums the replicas' buffers in graphs.
      exchange: What they exchange in a training. Its compression sums what is to be compressed;
        one of updates comes in by `sum_by`.
    """

    def __init__(
        self,
        devices: Sequence[str],
        processes: ProcessGroup,
        between: CrossProcess,
        reducer: Reducer,
        exchange: ExchangeOptions,
    ) -> None:
        self._devices = devices
        self.processes = processes
        self._between = between
        self.reducer = reducer
        self.exchange = exchange
        self.arrivals: ArrivalSums | None = None
        compression = exchange.compression
        self._compression = compression if isinstance(compression, Compression) else None

    identical_writes = staticmethod(mirrored_variables.identical_writes)
    summed_on_read = staticmethod(mirrored_variables.summed_on_read)
    averaged_on_read = staticmethod(mirrored_variables.averaged_on_read)
    read_after_round = staticmethod(mirrored_variables.read_after_round)
    made_alone = staticmethod(mirrored_variables.made_alone)

    @property
    def devices(self) -> Sequence[str]:
        """The devices of this process' replicas."""
        return self._devices

    @property
    def num_replicas(self) -> int:
        """The number of replicas; reading it is not noted, unlike the strategy's property."""
        return self.processes.world_size * self.processes.local_size

    @property
    def rank(self) -> int:
        """The number of the calling replica, which is known while its own trace is made."""
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        return int(tf.get_static_value(rank)) if tf.is_tensor(rank) else int(rank)

    # ---- in a replica function

    def sum(self, values: Sequence[Value]) -> list[Value]:
        """Sums as `Replicas` says; TensorFlow's all-reduce gives the gradient, summed as well."""
        if self.num_replicas == 1 or not values:
            return list(values)
        return list(tf.distribute.get_replica_context().all_reduce("SUM", list(values)))

    def sum_without_gradient(
        self,
        values: Sequence[Value],
        merge_rows: bool = False,
        compress: bool = False,
    ) -> list[Value]:
        """Sums as `Replicas` says, without a gradient."""
        if self.num_replicas == 1 or not values:
            return list(values)
        compression = self._compression if compress else None
        if tf.executing_eagerly():
            assert compression is None, "gradients are compressed in graphs alone"
            return self._eager_sum(values)
        self._check_can_communicate()
        with tf.name_scope("tfdp_all_reduce"):
            return self.reducer.all_reduce(
                values,
                self.rank,
                merge_rows,
                None if compression is None else compression.sum,
            )

    def sum_of_first(
        self, values: Sequence[tf.Tensor], rows: tf.Tensor, all_rows: tf.Tensor
    ) -> list[tf.Tensor]:
        """Sums as `Replicas` says, in one piece, in float32 at least."""
        assert self.arrivals is not None
        self._check_can_communicate()
        wide = tf.float64 if any(each.dtype == tf.float64 for each in values) else tf.float32
        flat = [tf.cast(tf.reshape(each, [-1]), wide) for each in values]
        with tf.name_scope("tfdp_sum_of_first"):
            packed = tf.concat([*flat, tf.cast(rows, wide)[tf.newaxis]], 0)
            *sums, counted = tf.split(
                self.arrivals.sum(packed, rows, all_rows), [each.shape[0] for each in flat] + [1]
            )
            scale = tf.cast(all_rows, wide) / tf.maximum(counted[0], 1)
            found = [
                tf.cast(tf.reshape(total * scale, each.shape), each.dtype)
                for total, each in zip(sums, values, strict=True)
            ]
        self.reducer.tell(values, found, lambda: packed.shape[0] * wide.size * 2)
        return found

    def dropped_examples(self) -> int | None:
        """Counts the examples that did not count, as `Replicas` says."""
        return None if self.arrivals is None else self.arrivals.dropped_rows

    def sums_not_told(self) -> list[ClosedSum]:
        """Returns the sums of `arrivals` since the last call."""
        assert self.arrivals is not None
        return self.arrivals.take_untold()

    def sum_by(
        self,
        compress: CompressBucket,
        tensors: Sequence[tf.Tensor],
        payload_bytes: Sequence[int],
    ) -> list[tf.Tensor]:
        """Sums as `Replicas` says; one replica has all in one bucket."""
        if not tensors:
            return []
        if self.num_replicas == 1:
            return list(compress(range(len(tensors)), Transport(lambda value: value)))
        self._check_can_communicate()
        with tf.name_scope("tfdp_compressed"):
            return self.reducer.sum_by(compress, tensors, payload_bytes, self.rank)

    def sum_of_neighbours(
        self,
        tensors: Sequence[tf.Tensor],
        distances: Sequence[int],
    ) -> list[tf.Tensor]:
        """Sums as `Replicas` says."""
        if not distances:
            return list(tensors)
        self._check_can_communicate()
        with tf.name_scope("tfdp_gossip"):
            return self.reducer.sum_of_neighbours(tensors, distances, self.rank)

    def broadcast_from_first(self, value: Value, dtype: tf.DType) -> Value:
        """Sends the first replica's value, as `Replicas` says."""
        if self.num_replicas == 1:
            return value
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(
                self.broadcast_from_first(value.values, value.values.dtype),
                self.broadcast_from_first(value.indices, value.indices.dtype),
                value.dense_shape,
            )
        value = tf.convert_to_tensor(value, None if tf.is_tensor(value) else dtype)
        if value.dtype == tf.string:
            raise TypeError(
                "A variable with aggregation ONLY_FIRST_REPLICA must hold numbers or booleans to "
                f"be written in a replica, but received {value.dtype.name}. Write it outside "
                "`strategy.run`."
            )
        if tf.executing_eagerly():
            number = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
            (summed,) = self._eager_sum([number if self.rank == 0 else tf.zeros_like(number)])
            return tf.cast(summed, value.dtype)
        self._check_can_communicate()
        return self.reducer.broadcast(value, self.rank)

    def _eager_sum(self, values: Sequence[Value]) -> list[Value]:
        def merge(strategy: tf.distribute.Strategy, *values: Value) -> list[Value]:
            with tf.device(self._devices[0]):
                totals = self._between.sums([local_sum(value) for value in values])
            copy = ReductionToOneDevice().broadcast
            return [copy(total, value) for total, value in zip(totals, values, strict=True)]

        # Each replica copies its values: TensorFlow would take one tensor of all replicas for a
        # single value, and sum it once.
        copies = tuple(map_values(tf.identity, value) for value in values)
        return list(tf.distribute.get_replica_context().merge_call(merge, args=copies))

    def _check_can_communicate(self) -> None:
        if getattr(threading.current_thread(), "in_eager", False):
            raise RuntimeError(
                "Replicas that run eagerly can only communicate eagerly, but a collective is "
                "inside a tf.function that one replica calls. Decorate the function that calls "
                "`strategy.run` with `tf.function`, or leave `run_eagerly` out."
            )
        if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise RuntimeError(
                "Replicas must communicate outside XLA, which knows nothing of TensorFlow's "
                "collectives, but a collective is inside a function that is compiled "
                "(`jit_compile=True`). Use `strategy.partitioned(step, jit_compile=True)`, which "
                "compiles what lies between collectives. In a model, use jit_compile=False, or "
                "make BatchNormalization(synchronized=False)."
            )

    # ---- between replica functions

    def parted(self, variable: tf.Variable, sharding: Sharding) -> tf.Variable:
        """Makes a variable of parts, as `Replicas` says."""
        return sharded_variable.parted(
            variable, sharding, self.processes.rank * self.processes.local_size
        )

    @contextlib.contextmanager
    def held_whole(self, variables: Sequence[tf.Variable]) -> Iterator[None]:
        """Holds variables of parts whole, as `Replicas` says."""
        if not variables:
            yield
            return
        with sharded_variable.held_whole(variables), one_device.traced():
            yield

    def gather_rows(self, value: Rows) -> Rows:
        """Concatenates the rows of all replicas, as `Replicas` says."""
        return self._between.gather_rows(value)

    def sums_read_once(
        self, shared: Sequence[tf.Variable]
    ) -> contextlib.AbstractContextManager[None]:
        """Reads the shared variables' sums once, as `Replicas` says."""
        values = {}
        for variable in shared:
            value = variable.read_value()
            # Rank 0 alone writes files: the others let go of what each has a part of.
            if self.processes.rank == 0 or not isinstance(
                variable, sharded_variable.ShardedVariable
            ):
                values[id(variable)] = value
        return mirrored_variables.read_once(values)
