"""The strategy that users make: `tfdp.DataParallelStrategy`."""

import logging
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp import cluster
from tfdp import keras as tfdp_keras
from tfdp import topology as topologies
from tfdp.base import bucketing, determinism, machine
from tfdp.cluster import rank_status, tf_config
from tfdp.communication import collectives
from tfdp.communication.engines import communication_hint
from tfdp.compression import Compression, UpdateCompression
from tfdp.compression.exchange import ExchangeOptions
from tfdp.data.distributed import batch_sharding
from tfdp.strategy import auto_topology, option_checks, process_groups
from tfdp.strategy import replica_devices as device_names
from tfdp.strategy.extended import DataParallelExtended
from tfdp.strategy.freed_memory import keep_freed_memory
from tfdp.strategy.programs.one_device_programs import OneDevicePrograms
from tfdp.synchronization import Synchronization
from tfdp.topology import serialization

_LEAST_BUCKET_BYTES = 2**10


class DataParallelStrategy(OneDevicePrograms):
    """Trains a Keras model on several devices exactly as one device given the global batch would.

    A `tf.distribute.Strategy`: `scope`, `run`, `reduce`, `gather`,
    `experimental_distribute_dataset` and the others behave as tf.distribute documents. Variables
    made in its scope have a copy on every device, bit for bit the same after each step.

    Each replica sends the gradients' bytes 2(n-1)/n times (most topologies; half of that with
    `compression=tfdp.compression.Cast("bfloat16")`), once for each call of a tape's `gradient`, or
    accumulation window, and a few scalars per batch and loss. A loop around `run` sends them when
    it passes them to an optimizer.

    In a cluster each process runs the same script and makes the same strategy; its replicas are the
    devices of all processes. The strategy reads the cluster from `cluster_resolver`, `TF_CONFIG`,
    MPI's or Slurm's variables, in this order; without any of these the process is alone. The ranks
    know each other by a secret, in `TFDP_SECRET` or the file that `TFDP_SECRET_FILE` names;
    `tfdp run` makes one. `TFDP_PEERS` lists the hosts of a cluster. Without it anybody who reaches
    TensorFlow's servers may use them; if all ranks are on one host, only from that host.

    Args:
      devices: Names such as `["GPU:0", "GPU:1"]`, of one kind and in this process. None: all local
        GPUs, else the CPU.
      cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`, used in place of the
        environment.
      topology: The way buffers are summed: a name ("native", "ring", "tree", "halving_doubling",
        "direct", "torus", "hierarchical") or an object such as
        `tfdp.topology.Torus(rows=2, columns=4)`. "auto" measures the links, which takes about a
        second, and chooses for each size; see `tfdp.topology.Auto`. All but "native" follow the
        hosts, in any order of the ranks. Buffers of unknown shape, and sums outside of graphs, use
        "native".
      bucket_bytes: The most bytes that travel together, at least 1024. Gradients of up to half this
        size, and below 2 MiB, travel together. None: the choice of "auto", otherwise 4 MiB in
        programs of one device (`fit`, `partitioned`) and 25 MiB in `run`.
      compression: The compression of gradients for the way between replicas, an object of
        `tfdp.compression`: `Cast("bfloat16")` sends half the bytes, and adds a rounding;
        `ErrorFeedback(Int8())` sends a quarter, `ErrorFeedback(TopK(0.01))` less between few
        replicas. It applies to gradients that reach the optimizer as sums over the examples, scaled
        or not. If a step computes a norm of gradients, their sum travels uncompressed. None: no
        compression.
      synchronization: The method in place of a sum of gradients that each step waits for, an object
        of `tfdp.synchronization`. With `Delayed()` the sum travels while the next step computes;
        with `BackupWorkers(1)` it is that of the ranks that come first. With all others, such as
        `LocalSGD(every=10)`, each replica updates its own weights, until all get one set again:
        after so many updates, at an epoch's end, and in `synchronize`. In between a tape returns a
        replica's own gradients, and clipping acts on these. Replicas no longer train as one device
        does; each method is that of its paper. With `compression` the outer gradients of `DiLoCo`
        are compressed. None: gradients are summed.
      shard: The state of which each replica holds only a shard (ZeRO, 1910.02054). "optimizer":
        the optimizer's state, and moving averages. "gradients": also accumulated gradients; then
        each micro-batch sends half as much as a window does otherwise. "parameters": also weights
        and their gradients; replicas gather a layer's weights in the forward and the backward pass,
        which sends 1.5 times as much, and `run` cannot read them. Each replica sums its shard of
        the gradients, updates its shard of the weights, and gathers the others, which sends as much
        as a step without `shard`. Optimizers that do not compute element by element are right as
        well, and may send more. None: each replica holds everything.
      batch_normalization: The statistics of plain `BatchNormalization` in `fit` and `partitioned`.
        "whole_batch": those of the whole batch, as on one device; two sums a layer, one in each
        pass. "per_replica": those of each replica's examples, as in MirroredStrategy and PyTorch's
        DDP; this sends nothing, and each number of replicas trains differently. Moving statistics
        are then means weighted by examples. Layers with `synchronized=True` or `renorm=True`, and
        eager steps, always use the whole batch; in `run` plain layers use their own input.
      engine: The engine that moves tensors between the processes of a cluster. "tensorflow":
        TensorFlow's runtime, by gRPC, between GPUs by NCCL. "mpi": mpi4py, several times faster, if
        MPI's launcher started the processes and the devices are CPUs. "auto": MPI if it can be
        used, otherwise TensorFlow's. Both give the same bits for every topology but "native".
      custom_loss: Has no effect, and disappears with the next version: a `train_step` of your own
        differentiates the loss of the whole batch, as on one device.
      timeout_seconds: The longest wait for a rank in a collective of a cluster. After it all ranks
        end with an error that names the rank. The latest strategy's value holds for the process.
      startup_timeout_seconds: The longest wait for all ranks of a cluster to start.
      mesh, layout_map: None. A mesh with a second axis is `XLAStrategy`'s.

    Raises:
      TypeError: `compression` is no object of `tfdp.compression`, or `synchronization` none of
        `tfdp.synchronization`; or there is a `mesh`.
      ValueError: `compression` does not go with `synchronization`; `shard` goes with no
        `synchronization`, and only with the compressions `Cast`, `Int8` and `Sign`; one replica has
        `shard`; `batch_normalization` is unknown; a device is unknown, named twice, or of another
        process; a number is out of range; the topology is unknown or does not cover the ranks;
        TFDP_TOPOLOGY_FILE does not fit, or is not set for "auto" after `tfdp.enable_determinism`.
      ClusterError: The cluster's description is malformed, a rank does not start, or the engine
        cannot be used.
      RankMismatchError: The ranks make different strategies, or have different seeds of
        `tfdp.enable_determinism`.

    >>> strategy = DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> strategy.num_replicas_in_sync, strategy.rank, strategy.topology
    (2, 0, Native())

    With "per_replica" each replica normalizes its own two examples:

    >>> import keras
    >>> own = DataParallelStrategy(["CPU:0", "CPU:1"], batch_normalization="per_replica")
    >>> for strategy in strategy, own:
    ...     with strategy.scope():
    ...         layer = keras.layers.BatchNormalization(epsilon=0.0)
    ...         layer.build([None, 1])
    ...     step = strategy.partitioned(lambda x: layer(x, training=True))
    ...     print(step(tf.constant([[0.0], [2.0], [8.0], [10.0]])).numpy().round(2).ravel())
    [-1.21 -0.73  0.73  1.21]
    [-1.  1. -1.  1.]
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        topology: str | topologies.Topology = "native",
        bucket_bytes: int | None = None,
        compression: Compression | UpdateCompression | None = None,
        synchronization: Synchronization | None = None,
        shard: str | None = None,
        batch_normalization: str = "whole_batch",
        engine: str = "auto",
        custom_loss: str | None = None,
        timeout_seconds: float = 600.0,
        startup_timeout_seconds: float = 300.0,
        mesh: None = None,
        layout_map: None = None,
    ) -> None:
        option_checks.check_no_mesh(mesh, layout_map)
        if bucket_bytes is not None and not bucket_bytes >= _LEAST_BUCKET_BYTES:
            raise ValueError(
                f"`bucket_bytes` must be at least {_LEAST_BUCKET_BYTES}, but received "
                f"{bucket_bytes}. Use bucket_bytes=25 * 2**20 for 25 MiB, or leave it out."
            )
        if not (compression is None or isinstance(compression, (Compression, UpdateCompression))):
            raise TypeError(
                "`compression` must be an object of `tfdp.compression`, but received "
                f'{compression!r}. Use compression=tfdp.compression.Cast("bfloat16"), or leave it '
                "out."
            )
        option_checks.check_synchronization(synchronization, compression)
        option_checks.check_shard(shard, compression, synchronization)
        option_checks.check_batch_normalization(batch_normalization)
        collectives.check_name(engine)
        if custom_loss is not None:
            logging.getLogger("tfdp").warning(
                "`custom_loss` has no effect any more, and goes with the next version: steps train "
                "as on one device. Leave it out; in `fit`, `num_replicas_in_sync` is 1."
            )
        for option, seconds in (
            ("timeout_seconds", timeout_seconds),
            ("startup_timeout_seconds", startup_timeout_seconds),
        ):
            if not seconds > 0:
                raise ValueError(
                    f"`{option}` must be above 0, but received {seconds}. Leave it out for the "
                    "default, or use float('inf') to wait for ever."
                )
        topology_option = topology if isinstance(topology, str) else repr(topology)
        topology = topologies.from_name(topology)
        undecided = isinstance(topology, topologies.Auto) and not topology.rules
        tf_config.unset_if_blank(os.environ)
        found = cluster.detect(resolver=cluster_resolver)
        processes = process_groups.group(
            found,
            devices,
            synchronization,
            {"batch_normalization": batch_normalization, "timeout_seconds": timeout_seconds},
            (timeout_seconds, startup_timeout_seconds),
        )
        worker_devices = device_names.resolve(devices)
        option_checks.check_replicas(shard, processes.world_size * processes.local_size)
        # Before MPI is initialised, in which each rank waits for all others, deaf to their errors.
        processes.compare("the options of a strategy", {"engine": engine})
        processes.flush()
        choice = collectives.choose(
            engine, processes.rank, processes.world_size, worker_devices, os.environ
        )
        sizes = processes.world_size, processes.local_size
        option_checks.check_ranks(synchronization, *sizes, choice.name)
        number = processes.compare_strategies(
            {
                "engine": choice.name,
                "what moves tensors between devices": communication_hint(worker_devices),
                "topology": repr(topology),
                "bucket_bytes": bucket_bytes,
                "compression": repr(compression),
                "synchronization": None if synchronization is None else synchronization.describe(),
                "shard": shard,
                "batch_normalization": batch_normalization,
                "timeout_seconds": timeout_seconds,
                "the seed of `tfdp.enable_determinism`": determinism.chosen_seed(),
            }
        )
        device_names.check_gpus_apart(worker_devices, processes)
        extended = DataParallelExtended(
            self,
            devices=worker_devices,
            processes=processes,
            strategy_number=number,
            choice=choice,
            topology=topologies.Native() if undecided else topology,
            bucket_bytes=bucket_bytes or _bucket_bytes_of(topology),
            exchange=ExchangeOptions(compression, synchronization, shard),
        )
        if synchronization is not None and not synchronization.replicas_wait:
            assert isinstance(processes, collectives.ClusterProcesses)
            count = synchronization.num_counted(processes.world_size)
            sums = processes.arrival_sums(choice, extended.worker_devices[0], count)
            extended.replicas.arrivals = sums
        self.adapter_state = tfdp_keras.StrategyState()
        self.compression = compression
        self.synchronization = synchronization
        self.shard = shard
        self.batch_normalization = batch_normalization
        self._options = {
            "devices": None if devices is None else list(devices),
            "topology": topology_option,
            "bucket_bytes": bucket_bytes,
            "compression": None if compression is None else repr(compression),
            "synchronization": None if synchronization is None else synchronization.describe(),
            "shard": shard,
            "batch_normalization": batch_normalization,
            "engine": engine,
            "timeout_seconds": timeout_seconds,
            "startup_timeout_seconds": startup_timeout_seconds,
        }
        super().__init__(extended)
        if undecided:
            auto = auto_topology.decided(extended)
            extended.use_topology(auto, bucket_bytes or _bucket_bytes_of(auto))
        tfdp_keras.install(self)
        keep_freed_memory()
        rank_status.tell(made=True)
        determinism.note_strategy_made()

    def describe(self) -> dict[str, Any]:
        """Describes the strategy for `tfdp.write_manifest` and logs, as JSON.

        Returns:
          `replicas`: their number in all processes; `world_size`; `rank`; `devices`: the names of
          this process' devices; `hosts`: for each replica the number of its host; `engine`: the
          one in use; `topology`: the one in use, for "auto" the rules it decided on and the `links`
          it measured;
          `bucket_bytes`: the number in use; `options`: the arguments as they were given.

        >>> strategy = DataParallelStrategy(devices=["CPU:0", "CPU:1"], topology="ring")
        >>> strategy.describe()["topology"], strategy.describe()["devices"]
        ({'name': 'ring'}, ['CPU:0', 'CPU:1'])
        """
        extended = self.extended
        return {
            "replicas": extended.num_replicas,
            "world_size": self.world_size,
            "rank": self.rank,
            "devices": [machine.short_device_name(device) for device in extended.worker_devices],
            "hosts": extended.hosts(),
            "engine": extended.engine,
            "topology": serialization.described(extended.topology),
            "bucket_bytes": extended.bucket_bytes,
            "options": dict(self._options),
        }

    @property
    def topology(self) -> topologies.Topology:
        """The topology that sums buffers; for "auto" the decision, with its measurements."""
        return self.extended.topology

    def __repr__(self) -> str:
        replicas = self.extended.num_replicas
        devices = [machine.short_device_name(name) for name in self.extended.worker_devices]
        where = f"in {self.world_size} processes of " if self.world_size > 1 else "on "
        return f"DataParallelStrategy({replicas} replicas {where}{', '.join(devices)})"

    # `MirroredExtended` reads this key for collectives of its own, which are not used here.
    _collective_key_base = 0

    def synchronize(self, owner: Any) -> None:
        """Ends the open round of a `synchronization`: all replicas get one set of weights.

        Under `Delayed` it applies the gradients that wait. `fit` does so at the end of each epoch.
        Call it after `train_on_batch`, or in a loop of your own, before you use weights outside of
        training, and there after `optimizer.finalize_variable_values`. All ranks must call it. If
        no round is open, nothing is sent, except for optimizers with `use_ema`.

        Args:
          owner: An optimizer, or a model, for the variables of its optimizers.

        Raises:
          RuntimeError: The call is in a replica function, or in a tf.function.

        >>> import keras
        >>> from tfdp.synchronization import LocalSGD
        >>> strategy = DataParallelStrategy(["CPU:0", "CPU:1"], synchronization=LocalSGD(every=9))
        >>> with strategy.scope():
        ...     dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        ...     model = keras.Sequential([keras.Input([1]), dense])
        ...     model.compile("sgd", "mse")
        >>> _ = model.train_on_batch(tf.constant([[1.0], [3.0]]), tf.constant([[1.0], [1.0]]))
        >>> [round(copy.numpy().item(), 6) for copy in dense.kernel.value.values]
        [0.02, 0.06]
        >>> strategy.synchronize(model)
        >>> [round(copy.numpy().item(), 6) for copy in dense.kernel.value.values]
        [0.04, 0.04]
        """
        replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if replica or tf.inside_function():
            raise RuntimeError(
                "`synchronize` must be called outside of replica functions and of tf.function, "
                "between steps, but was called within one. Move it to after `strategy.run`, into "
                "the loop that calls the tf.function."
            )
        tfdp_keras.end_rounds(self, owner)
        tfdp_keras.end_averages(owner)

    def counted_ranks(self) -> list[tuple[int, ...]]:
        """Returns for each of the latest updates the ranks whose gradients counted in it.

        Without `tfdp.synchronization.BackupWorkers`, where it is all ranks, the list is empty. It
        has at most 65,536 updates, the last one last. A rank that is late does not know of the
        updates that it has not made yet.

        >>> DataParallelStrategy(["CPU:0", "CPU:1"]).counted_ranks()
        []
        """
        sums = self.extended.replicas.arrivals
        return [] if sums is None else [each.counted for each in sums.closed]

    def split(self, batch: Any) -> Any:
        """Divides one global batch into the replicas' shards, in order and as evenly as possible.

        Args:
          batch: A nest of arrays or tensors with the examples along axis 0; None stays None.

        Returns:
          The nest with a `tf.distribute.DistributedValues` for each tensor, as `run` takes them.

        >>> strategy = DataParallelStrategy(devices=["CPU:0", "CPU:1"])
        >>> [v.numpy().tolist() for v in strategy.split(tf.range(3)).values]
        [[0, 1], [2]]
        """
        return batch_sharding.split(batch, self)


def _bucket_bytes_of(topology: topologies.Topology) -> int:
    decided = topology.bucket_bytes if isinstance(topology, topologies.Auto) else None
    return decided or bucketing.DEFAULT_BYTES
