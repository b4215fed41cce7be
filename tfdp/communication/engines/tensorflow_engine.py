"""The engine that is TensorFlow's collective runtime: gRPC between processes, NCCL on GPUs."""

import itertools
import logging
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.communication.engines import sequence, transfers
from tfdp.communication.engines.engine import Engine, check_can_be_gathered
from tfdp.communication.engines.graph_counters import ProgressCounters
from tfdp.communication.engines.launching import (
    CollectiveLauncher,
    Key,
    KeyOfGroup,
    has_one_unknown,
)
from tfdp.topology import Exchange, Schedule

# The dtypes whose values these ops cannot move on CPU: their bits travel as another type.
_BITS_AS = {tf.bfloat16: tf.float16, tf.uint32: tf.int32, tf.uint64: tf.int64}
_GATHER_AS = dict.fromkeys((tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32)

# What TensorFlow refuses to sum on GPUs, by NCCL and by its own rings, and what is summed in its
# place. Such an error would end all collectives of the process.
_SUMMED_ON_GPUS_AS = {tf.bfloat16: tf.float32, tf.int32: tf.int64}

_NO_BFLOAT16 = (
    "TensorFlow does not sum bfloat16 on GPUs: such sums travel as float32, in twice the bytes. "
    'For fewer use tfdp.compression.Cast("float16") with a `keras.optimizers.LossScaleOptimizer`; '
    'Cast("bfloat16") saves nothing here.'
)


class TensorFlowEngine(Engine):
    """The primitives of `Engine` on TensorFlow's runtime, in one process or between several.

    The caller's device scope places the ops. Each (group, device) has an ordering token: without
    it, several local devices could wait for each other in different orders. The sends and receives
    of one schedule need none, since they wait only for each other.

    Where NCCL moves the tensors, a GPU runs all that it is given in one stream, whatever the group,
    and stands still while a group's first collective waits for its members. So each device has one
    token. To NCCL a send would be a broadcast in a group of two, which a token would make wait for
    its turn, and without one ranks come to wait for each other: sends go TensorFlow's own way.

    No op has a timeout: for each collective TensorFlow would start a thread that sleeps until the
    timeout is over, thousands of them within minutes. Within a process no rank can be lost, and an
    op that fails on one device aborts the collectives of all. Between processes a watchdog keeps
    the deadline.

    Args:
      devices: The devices of this process' ranks, as TensorFlow writes them in full.
      first_rank: The rank of the first device.
      world_size: The number of ranks in all processes; None: `devices` are all.
      key_of_group: Returns numbers of a group, alike in all its processes; None: within one
        process.
      counters: Counts the collectives that this process' ranks begin and end.
    """

    name = "tensorflow"

    def __init__(
        self,
        devices: Sequence[str],
        first_rank: int = 0,
        world_size: int | None = None,
        key_of_group: KeyOfGroup | None = None,
        counters: ProgressCounters | None = None,
    ) -> None:
        self.world_size = len(devices) if world_size is None else world_size
        self._hint = communication_hint(devices)
        self.is_nccl = self._hint == "nccl"
        self._sums_as = _SUMMED_ON_GPUS_AS if are_gpus(devices) else {}
        self._speaks = first_rank == 0
        self._launcher = CollectiveLauncher(
            devices, first_rank, key_of_group, counters, self.is_nccl
        )
        # The number of pieces of a rank's chunk that are on their way at once. Between processes
        # of a host, TensorFlow's choice took 176 ms a step for 12.6 M parameters, two pieces 155.
        self._between_processes = counters is not None
        self._subdivisions = 2 if self._between_processes else -1

    def all_reduce(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Sums as `Engine` says, in 2(n-1) steps (a ring)."""
        if len(group) == 1 or tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        if tensor.dtype in self._sums_as:
            return self._wider(self.all_reduce, tensor, group)
        if tensor.shape.is_fully_defined():
            return self._all_reduce(tensor, group)
        # The runtime crashes on a tensor without elements: a tensor that may be empty travels with
        # one element more.
        padded = tf.pad(tf.reshape(tensor, [-1]), [[0, 1]])
        return tf.reshape(self._all_reduce(padded, group, tensor)[:-1], tf.shape(tensor))

    def all_gather(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Concatenates as `Engine` says."""
        if len(group) == 1:
            return tf.identity(tensor)
        check_can_be_gathered(tensor)
        travels_as = {**_GATHER_AS, **_BITS_AS}.get(tensor.dtype, tensor.dtype)
        move = tf.bitcast if tensor.dtype in _BITS_AS else tf.cast
        sent = move(tensor, travels_as)
        launch = self._launcher.prepare("all_gather", sent, group)
        sent = self._once_compared(sent, sent, group)
        shape = None
        if not (sent.shape.is_fully_defined() or has_one_unknown(sent.shape)):
            shape, sent = tf.shape(sent), tf.reshape(sent, [-1])  # the size is the call's key

        def collective(tensor: tf.Tensor, ordering_token: tf.Tensor, **keys: Key) -> tf.Tensor:
            return tf.raw_ops.CollectiveGatherV2(
                input=tensor, ordering_token=[ordering_token], **keys, **self._options(len(group))
            )

        received = self._launcher.start(collective, sent, launch)
        if shape is not None:
            received = tf.reshape(received, tf.concat([shape[:1] * len(group), shape[1:]], 0))
        if tensor.shape.rank is not None:
            received.set_shape([None, *tensor.shape[1:]])
        return move(received, tensor.dtype)

    def all_to_all(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Exchanges rows as `Engine` says, in one step."""
        if len(group) == 1 or tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        if self.is_nccl and tensor.dtype in _BITS_AS:
            bits = self.all_to_all(tf.bitcast(tensor, _BITS_AS[tensor.dtype]), group)
            return tf.bitcast(bits, tensor.dtype)
        launch = self._launcher.prepare("all_to_all", tensor, group)
        # By NCCL TensorFlow sends rows to the devices of the own process alone.
        options = self._options(len(group), "auto" if self._between_processes else self._hint)

        def collective(tensor: tf.Tensor, ordering_token: tf.Tensor, **keys: Key) -> tf.Tensor:
            return tf.raw_ops.CollectiveAllToAllV2(
                input=tensor, ordering_token=[ordering_token], **keys, **options
            )

        received = self._launcher.start(collective, tensor, launch)
        received.set_shape(tensor.shape)
        return received

    def reduce_scatter(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """Sums rows as `Engine` says, in one step."""
        # The runtime has no such op on CPUs.
        if len(group) == 1 or tensor.shape.num_elements() == 0 or not self.is_nccl:
            return super().reduce_scatter(tensor, group)
        if tensor.dtype in self._sums_as:
            return self._wider(self.reduce_scatter, tensor, group)
        launch = self._launcher.prepare("reduce_scatter", tensor, group)

        def collective(tensor: tf.Tensor, ordering_token: tf.Tensor, **keys: Key) -> tf.Tensor:
            return tf.raw_ops.CollectiveReduceScatterV2(
                input=tensor,
                ordering_token=[ordering_token],
                merge_op="Add",
                final_op="Id",
                **keys,
                **self._options(len(group)),
            )

        received = self._launcher.start(collective, tensor, launch)
        return tf.ensure_shape(tf.squeeze(received, 0), tensor.shape[1:])

    def order_token(self, group: tuple[int, ...], rank: int) -> tf.Tensor:
        """Returns the resource by which a rank of this process orders a group's collectives."""
        self._launcher.group_key(group)
        return self._launcher.token(group, rank)

    def exchange(
        self, schedule: Schedule, exchanges: Sequence[Exchange], tensor: tf.Tensor
    ) -> tf.Tensor:
        """Runs the transfers of `exchanges`, as `Engine` says, by sends and receives."""
        return transfers.run(self, schedule, exchanges, tensor)

    # ---- transfers between two ranks

    def together(
        self,
        transfers: Callable[[tf.Tensor, int, int], tf.Tensor],
        kind: str,
        tensor: tf.Tensor,
        keys: int,
    ) -> tf.Tensor:
        """Returns the result of `transfers`: sends and receives of `tensor` between any ranks.

        Args:
          transfers: Issues them, given `tensor`, the caller's rank and the first of the keys. Its
            result must wait for all of its sends, else TensorFlow leaves them out.
          kind: The name of the transfers, alike on all ranks.
          tensor: The buffer that the caller holds before; its shape must be known.
          keys: The number of transfers between all ranks, the caller's or not.
        """
        everyone = tuple(range(self.world_size))
        launch = self._launcher.prepare(kind, tensor, everyone, keys)

        def collective(tensor: tf.Tensor, ordering_token: tf.Tensor, **keys: Key) -> tf.Tensor:
            result = transfers(tensor, launch.rank, launch.instance_key)
            # Writes of one resource run one after the other, and so do the schedules of one graph,
            # which may have the same keys where a function is called twice or two replica functions
            # share a graph. A write always runs: the sends run even if nothing needs the result.
            with tf.control_dependencies([result]):
                tf.raw_ops.AssignVariableOp(resource=ordering_token, value=0.0)
            return result

        return self._launcher.start(collective, tensor, launch, apart=True)

    def send(self, tensor: tf.Tensor, source: int, target: int, key: int) -> tf.Operation:
        """Sends `tensor` from the caller's rank; the operation is done when `target` has it.

        Args:
          tensor: A tensor of a dtype that `all_reduce` takes, with one element or more.
          source: The caller's rank.
          target: Another rank.
          key: The key of this transfer alone, the same at both ends.
        """
        bits = _BITS_AS.get(tensor.dtype)
        return tf.raw_ops.CollectiveBcastSendV2(
            input=tensor if bits is None else tf.bitcast(tensor, bits),
            instance_key=key,
            **self._pair(source, target),
        ).op

    def receive(self, like: tf.Tensor, source: int, target: int, key: int) -> tf.Tensor:
        """Returns the tensor that `source` sends to the caller's rank `target`.

        Args:
          like: A tensor of the shape and dtype that are sent; the receive waits for it.
          source: Another rank.
          target: The caller's rank.
          key: The key of this transfer alone, the same at both ends.
        """
        bits = _BITS_AS.get(like.dtype)
        with tf.control_dependencies([like]):
            received = tf.raw_ops.CollectiveBcastRecvV2(
                instance_key=key,
                T=like.dtype if bits is None else bits,
                shape=like.shape,
                **self._pair(source, target),
            )
        received.set_shape(like.shape)
        return received if bits is None else tf.bitcast(received, like.dtype)

    def _pair(self, source: int, target: int) -> dict[str, int | str]:
        group = (min(source, target), max(source, target))
        return {"group_key": self._launcher.group_key(group), **self._options(len(group), "auto")}

    def _all_reduce(
        self, tensor: tf.Tensor, group: tuple[int, ...], shaped: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Sums as `all_reduce` does; the shape of `shaped` must be that of all members."""
        shaped = tensor if shaped is None else shaped
        launch = self._launcher.prepare("all_reduce", shaped, group)
        tensor = self._once_compared(tensor, shaped, group)

        def collective(tensor: tf.Tensor, ordering_token: tf.Tensor, **keys: Key) -> tf.Tensor:
            return tf.raw_ops.CollectiveReduceV2(
                input=tensor,
                ordering_token=[ordering_token],
                merge_op="Add",
                final_op="Id",
                max_subdivs_per_device=self._subdivisions,
                **keys,
                **self._options(len(group)),
            )

        return self._launcher.start(collective, tensor, launch)

    def _wider(
        self,
        primitive: Callable[[tf.Tensor, tuple[int, ...]], tf.Tensor],
        tensor: tf.Tensor,
        group: tuple[int, ...],
    ) -> tf.Tensor:
        """Sums what cannot be summed in its own dtype in a wider one: one rounding, or none."""
        wider = self._sums_as[tensor.dtype]
        if self._speaks and tensor.dtype == tf.bfloat16:
            self._speaks = False
            logging.getLogger("tfdp").warning(_NO_BFLOAT16)
        return tf.cast(primitive(tf.cast(tensor, wider), group), tensor.dtype)

    def _once_compared(
        self, tensor: tf.Tensor, shaped: tf.Tensor, group: tuple[int, ...]
    ) -> tf.Tensor:
        """Returns `tensor`, once its shape is compared if no deadline would end a wait."""
        # A rank with another size has another key, and meets nobody; with other axes of as many
        # elements in all it has the same.
        ends = self._between_processes and has_one_unknown(shaped.shape)
        if shaped.shape.is_fully_defined() or ends:
            return tensor
        sequences, rank = sequence.current()
        if sequences.known_alike:
            return tensor
        if sequences.is_in_own_graph(rank):
            sequences.note_shape(rank, shaped)
            return tensor
        # The graphs of other replicas' branches and loops are out of reach, so the shapes travel.
        every = self.all_gather(sequence.axis_sizes(shaped)[tf.newaxis], group)
        call = f"A collective of {shaped.dtype.name} in a branch, loop or function"
        with tf.control_dependencies(
            [sequence.check_shapes(call, group, tf.unstack(every, len(group)))]
        ):
            return tf.identity(tensor)

    def _options(self, group_size: int, hint: str | None = None) -> dict[str, int | str]:
        return {
            "group_size": group_size,
            "communication_hint": hint or self._hint,
            "timeout_seconds": 0,
        }


def communication_hint(devices: Sequence[str]) -> str:
    """Returns "nccl" where each device is a GPU of its own, else "auto": the runtime's own rings.

    NCCL refuses two ranks on one GPU. Logical devices, into which
    `tf.config.set_logical_device_configuration` splits a GPU, share it; so TensorFlow's own
    `MirroredStrategy` uses rings there, too.

    Args:
      devices: The names of the replicas' devices in this process.

    >>> communication_hint(["/device:CPU:0", "/device:CPU:1"])
    'auto'
    """
    if not are_gpus(devices):
        return "auto"
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    gpus = gpus_of_logical_devices()
    used = [gpus[spec.device_index] for spec in specs]
    return "nccl" if len(set(used)) == len(used) else "auto"


def are_gpus(devices: Sequence[str]) -> bool:
    """Returns whether the replicas' devices are GPUs, or parts of such.

    >>> are_gpus(["/device:GPU:0", "/device:GPU:1"]), are_gpus(["/device:CPU:0"])
    (True, False)
    """
    return all(tf.DeviceSpec.from_string(device).device_type == "GPU" for device in devices)


def gpus_of_logical_devices() -> list[str]:
    """Returns for each logical GPU of this process the name of the GPU that it is, or a part of."""
    return list(
        itertools.chain.from_iterable(
            [gpu.name] * len(tf.config.get_logical_device_configuration(gpu) or [None])
            for gpu in tf.config.get_visible_devices("GPU")
        )
    )
