"""The strategy's inner part, which TensorFlow calls: each replica acts by itself.

Some of the replicas may be in other processes. In graphs all replicas meet by an engine,
wherever they are. Reductions between replica functions are made once for each process, by
`between`.
"""

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base.sharding import EvenSharding
from tfdp.communication.collectives import (
    EngineChoice,
    Probe,
    Reducer,
    payloads,
    random_states,
    two_level_sums,
)
from tfdp.communication.replicas import HasReplicas, ProcessGroup, one_device
from tfdp.compression.exchange import ExchangeOptions
from tfdp.keras.run.replica_functions import ReplicaFunction, around_replicas
from tfdp.strategy import initial_values, mirrored_variables, replica_graphs
from tfdp.strategy._tensorflow import (
    VARIABLE_POLICY_MAPPING,
    DistributedValues,
    Function,
    ReductionToOneDevice,
    SingleDevice,
    control_status_ctx,
    create_mirrored_variable,
    tf_convert,
)
from tfdp.strategy._tensorflow_programs import (
    container_of_copy,
)
from tfdp.strategy.cross_process import CrossProcess, divide
from tfdp.strategy.cross_replica import CrossReplica
from tfdp.strategy.programs import eager_steps, reduction_order, tracing
from tfdp.strategy.programs.partial_programs import PartialProgram
from tfdp.strategy.programs.program_call import call_options, calling_with
from tfdp.strategy.programs.program_context import ProgramContext
from tfdp.strategy.replica_graphs import Lifting
from tfdp.strategy.sharded_variable import ShardedVariable, is_to_be_sharded, parts_like
from tfdp.strategy.strategy_replicas import StrategyReplicas
from tfdp.topology import Topology


class DataParallelExtended(CrossReplica, HasReplicas):
    """The strategy's inner part, in which no replica waits for another while tracing.

    `_use_merge_call()` is False, so TensorFlow and Keras let every replica act by itself. A
    conditional around an update is therefore legal, and the update's collectives run inside it.

    Attributes:
      replicas: The operations that the replicas do together.
      programs: What partitioned programs need of the replicas.
      topology: The topology that sums buffers.
      bucket_bytes: The most bytes that travel together.

    Args:
      container: The strategy.
      devices: The devices of this process' replicas.
      processes: The processes that the replicas are in.
      strategy_number: The number of strategies this process made before, alike in all processes.
      choice: The engine that moves tensors between the replicas.
      topology: The topology that sums buffers.
      bucket_bytes: The most bytes that travel together.
      exchange: What the replicas exchange in a training.
    """

    replicas: StrategyReplicas

    def __init__(
        self,
        container: tf.distribute.Strategy,
        devices: Sequence[str],
        processes: ProcessGroup,
        strategy_number: int,
        choice: EngineChoice,
        topology: Topology,
        bucket_bytes: int,
        exchange: ExchangeOptions,
    ) -> None:
        self.processes = processes
        self._name = f"strategy {strategy_number}"
        self._containers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._shardings = EvenSharding(processes.world_size * processes.local_size)
        self._lifting = Lifting(self._call_for_each_replica, len(devices))
        super().__init__(container, devices=list(devices), cross_device_ops=ReductionToOneDevice())
        resolver = processes.resolver()
        if resolver is not None:
            self._cluster_resolver = resolver
        self._agreement = processes.agreement(self._name)
        self._engine = processes.engine(choice, self.worker_devices, self._name)
        self._between = CrossProcess(self.worker_devices, processes, self._engine, self._agreement)
        self.topology, self.bucket_bytes = topology, bucket_bytes
        self.replicas = StrategyReplicas(
            self.worker_devices, processes, self._between, self._reducer(), exchange
        )
        self.programs = ProgramContext(
            container,
            self._engine,
            self.replicas,
            self._agreement,
            self._between,
            self._as_replica,
        )

    @property
    def engine(self) -> str:
        """The name of the engine that moves tensors between the replicas."""
        return self._engine.name

    def use_topology(self, topology: Topology, bucket_bytes: int) -> None:
        """Sums buckets by this topology in all that is traced from now on."""
        self.topology, self.bucket_bytes = topology, bucket_bytes
        self.replicas.reducer = self._reducer()

    def order_of_sums(self) -> dict[str, Any]:
        """Returns what decides the last bits of sums; JSON."""
        return reduction_order.described(self)

    def take_order_of_sums(self, kept: Mapping[str, Any]) -> list[str]:
        """Sums as it was kept, and returns what cannot be taken."""
        return reduction_order.take(self, kept)

    @property
    def is_nccl(self) -> bool:
        """Whether NCCL moves tensors between the replicas."""
        return self._engine.is_nccl

    def _reducer(self) -> Reducer:
        said = two_level_sums.said_of(self.topology, self.num_replicas, self.hosts())
        if self.is_nccl and said is not None and self.processes.rank == 0:
            logging.getLogger("tfdp").warning(said)
        return Reducer(self._engine, self.topology, self.hosts(), self.bucket_bytes)

    def hosts(self) -> list[int]:
        """Returns for each replica the index of its host."""
        return [host for host in self.processes.hosts for _ in self.worker_devices]

    def probe(self) -> Probe:
        """Returns the probe that measures the links; all ranks must use it."""
        run, meet = self._container_strategy().run, self.processes
        return Probe(run, self._engine, self.hosts(), meet.barrier, meet.all_gather)

    # ---- who and where

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.first_rank + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.first_rank

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints: rank 0."""
        return self.processes.cluster_rank == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries: rank 0."""
        return self.processes.cluster_rank == 0

    def of_all_processes(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the number, or the vector of them, that each process has, in order."""
        return self._between.of_all_processes(numbers)

    def mean_of(self, variable: DistributedValues) -> tf.Tensor:
        """Returns the mean of the values that all replicas have, in float32 at least.

        All processes must call it.
        """
        wide = payloads.precise(variable.dtype)
        own = tf.add_n([tf.cast(copy, wide) for copy in variable.values])
        (total,) = self._between.sums([own])
        return tf.cast(divide(total, self.num_replicas), variable.dtype)

    def whole_of(self, variable: ShardedVariable) -> tf.Tensor:
        """Returns the value of which each replica holds a part; all processes must call it."""
        return self._between.gather(variable, variable.sharding.axis)

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        """Makes variables beside another; as on one device where that is traced."""
        if one_device.is_traced():
            return contextlib.nullcontext()
        return super().colocate_vars_with(colocate_with_variable)

    def update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        """Updates a variable as TensorFlow's method does; as on one device where that is traced."""
        if one_device.is_traced():
            return fn(var, *args, **(kwargs or {}))
        return super().update(var, fn, args, kwargs, group)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        if isinstance(var, ShardedVariable):  # as where Keras writes weights into their averages
            args = tuple(parts_like(var, each) for each in args)
        return super()._update(var, fn, args, kwargs, group)

    def _make_collective_ops_with_fallbacks(self) -> ReductionToOneDevice:
        return ReductionToOneDevice()

    def _use_merge_call(self) -> bool:
        return False

    # ---- variables

    def _create_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> Any:
        kwargs = mirrored_variables.placement(kwargs)
        with contextlib.suppress(ValueError):  # it depends on a batch; then TensorFlow decides
            kwargs["initial_value"] = tracing.outside(kwargs.get("initial_value"))
        colocate_with = kwargs.pop("colocate_with", None)
        if isinstance(colocate_with, SingleDevice):
            with tf.device(colocate_with.device):
                return next_creator(**kwargs)
        devices: Any = getattr(colocate_with, "_devices", self._devices)

        def create_copies(**kwargs: Any) -> list[tf.Variable]:
            copies: list[tf.Variable] = []
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
            mirrored_variables.CLASS_MAPPING,
            VARIABLE_POLICY_MAPPING,
            **kwargs,
        )
        self.note_variable(variable)
        for copy in variable.values:
            # TensorFlow sets it of most kinds of variables: a traced program captures handles.
            setattr(copy.handle, container_of_copy, weakref.ref(variable))
        shards_weights = self.replicas.exchange.shard == "parameters"
        if shards_weights and is_to_be_sharded(variable, self.num_replicas):
            return self.replicas.parted(
                variable, self._shardings.next_sharding(tuple(variable.shape))
            )
        return variable

    def note_variable(self, variable: Any) -> None:
        """Notes a variable of the strategy's, whose copies eager steps write."""
        self._containers[id(variable)] = variable

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: tf.Variable | None, **kwargs: Any
    ) -> Any:
        # A process that is alone keeps TensorFlow's way: there a value may be a tensor of a graph,
        # which could not be sent to another process.
        own = self.processes.world_size == 1 or mirrored_variables.is_made_alone()
        if replica_id or own:
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )
        return lambda: initial_values.of_rank_0(self.processes, self._name, device, kwargs)

    # ---- running replicas

    def _call_for_each_replica(self, fn: ReplicaFunction, args: Any, kwargs: Any) -> Any:
        eager = tf.executing_eagerly()
        with self.processes.explained() if eager else replica_graphs.seeded_apart(self.processes):
            if isinstance(fn, Function):
                return self._lifting.call(fn, args, kwargs)
            return self._run(fn, args, kwargs)

    def _run(self, fn: ReplicaFunction, args: Any, kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            fn = tf_convert(fn, control_status_ctx())
        sequences = self._agreement.new_sequences()
        # What Python draws while a graph is built is one constant, as on one device.
        once = None if tf.executing_eagerly() else random_states.DrawnOnce()

        @tf.autograph.experimental.do_not_convert
        def replica(*args: Any, **kwargs: Any) -> Any:
            rank = self.replicas.rank
            alike = once.trace(rank == self.first_rank) if once else contextlib.nullcontext()
            with alike, sequences.replica(rank), replica_graphs.after(args, kwargs):
                if not tf.executing_eagerly() and rank == self.first_rank:
                    self.processes.count_step()
                return run(*args, **kwargs)

        try:
            with around_replicas(fn, self._container_strategy(), self.replicas) as run:
                result = super()._call_for_each_replica(replica, args, kwargs)
        except RuntimeError as error:
            # TensorFlow's own error says only that the replicas' calls differ.
            if "different number of" in str(error):
                sequences.check()
            raise
        sequences.check()
        self._agreement.reach(sequences, getattr(fn, "__name__", "a replica function"))
        return result

    def _as_replica(self, rank: int, function: Callable[[], None]) -> None:
        """Calls a function as the replica of this number, while it is traced alone."""
        strategy = self._container_strategy()
        around = around_replicas(function, strategy, self.replicas)
        with around as run, tf.distribute.ReplicaContext(strategy, rank):
            run()

    def run_whole(self, step: Callable[[object], object], data: object) -> object:
        """Runs a step eagerly on the whole batch, in each process, as one device does."""
        with self.processes.explained():
            return eager_steps.run(
                self._container_strategy(), self.replicas, self._containers, step, data
            )

    def of_partials(
        self,
        function: Callable[[Sequence[tf.Tensor]], object],
        specs: Sequence[tf.TensorSpec],
        are_partials: Sequence[bool],
    ) -> PartialProgram:
        """Returns a function for one device as replicas run it that have partials."""
        return PartialProgram(self.programs, lambda *own: function(own), specs, are_partials)

    def graph_calls(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Returns what makes a context for calls of graphs, optimized as programs are."""
        return functools.partial(calling_with, call_options(self.worker_devices))

    def in_scope(self) -> contextlib.AbstractContextManager[None]:
        """Leaves what is being traced, and enters the scope."""
        return tracing.in_scope(self._container_strategy())
