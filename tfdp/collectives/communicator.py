"""Collective primitives on groups of ranks, run by TensorFlow's collective runtime in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.collectives import sequence
from tfdp.collectives.capturing import captured
from tfdp.collectives.progress import Counter, ProgressCounters

# `CollectiveGatherV2` moves no such values on CPU; their bits travel as another type.
_GATHER_BITS_AS = {tf.bfloat16: tf.float16, tf.uint32: tf.int32, tf.uint64: tf.int64}
_GATHER_AS = dict.fromkeys((tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32)


class Communicator:
    """Primitives between replicas, of one process or of a cluster's.

    Ops are placed by the caller's device scope. Each (group, device) has an ordering token: without
    it, several local devices may wait for each other in different orders.

    No op has a timeout: TensorFlow would start a thread for each collective that sleeps until the
    timeout is over, thousands of them within minutes. Within a process no rank can be lost, and an
    op that fails on one device aborts the collectives of all; between processes a watchdog keeps
    the deadline.

    Args:
      devices: The devices of this process' ranks, as TensorFlow writes them in full.
      first_rank: That of the first of them.
      world_size: Number of ranks in all processes; None: `devices` are all.
      key_of_group: A number for a group, alike in all its processes; None: within one process.
      counters: Counts what this process' ranks begin and end.
    """

    def __init__(
        self,
        devices: Sequence[str],
        first_rank: int = 0,
        world_size: int | None = None,
        key_of_group: Callable[[tuple[int, ...]], int] | None = None,
        counters: ProgressCounters | None = None,
    ) -> None:
        self._devices = dict(enumerate(devices, start=first_rank))
        self._world_size = len(devices) if world_size is None else world_size
        self._hint = "nccl" if all("GPU" in device for device in devices) else "auto"
        self._key_of_group = key_of_group or (lambda group: sequence.next_key())
        self._counters = counters
        # How many pieces of a rank's chunk are on their way at once. Between processes of a host
        # TensorFlow's choice took 176 ms a step for 12.6 M parameters, two pieces 155.
        self._subdivisions = -1 if counters is None else 2
        self._group_keys: dict[tuple[int, ...], int] = {}
        self._tokens: dict[tuple[tuple[int, ...], int], tf.Tensor] = {}
        self._counter_of: dict[tuple[tuple[int, ...], int], Counter] = {}

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world_size

    def all_reduce(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """The sum of `tensor` over `group`: the same bits on every member.

        Sends 2(n-1)/n of the tensor's bytes per rank in 2(n-1) steps (a ring).

        Args:
          tensor: float16/32/64, bfloat16, int32 or int64, of the same shape on every member.
          group: The ranks that take part, the caller's included.
        """
        if len(group) == 1 or tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        if tensor.shape.is_fully_defined():
            return self._all_reduce(tensor, group)
        # The runtime crashes on a tensor without elements: one that may be empty gets one more.
        padded = tf.pad(tf.reshape(tensor, [-1]), [[0, 1]])
        return tf.reshape(self._all_reduce(padded, group)[:-1], tf.shape(tensor))

    def _all_reduce(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        return self._apart(
            lambda tensor, **launch: tf.raw_ops.CollectiveReduceV2(
                input=tensor,
                merge_op="Add",
                final_op="Id",
                max_subdivs_per_device=self._subdivisions,
                **launch,
            ),
            tensor,
            self._launch("all_reduce", tensor, group),
        )

    @staticmethod
    def _apart(
        collective: Callable[..., tf.Tensor], tensor: tf.Tensor, launch: dict[str, Any]
    ) -> tf.Tensor:
        # In a function that is not inlined: inside a loop the runtime adds the loop's name to the
        # instance key, and that name differs between replicas.
        token, key = launch.pop("ordering_token"), launch.pop("instance_key")
        counter, text = launch.pop("counter"), launch.pop("text")
        sequences, rank = sequence.current()
        tensor = tensor if counter is None else counter.begin(tensor, text)
        if sequences.is_in_own_graph(rank):
            result = collective(tensor, ordering_token=[token], instance_key=key, **launch)
        else:

            @tf.function(autograph=False, experimental_attributes={"_noinline": True})
            def call(tensor: tf.Tensor, token: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
                return collective(tensor, ordering_token=[token], instance_key=key, **launch)

            result = call(tensor, token, key)
        return result if counter is None else counter.end(result)

    def all_gather(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """The members' tensors concatenated along axis 0, in the order of ranks.

        Args:
          tensor: Of rank 1 or more and the same shape on every member.
          group: The ranks that take part, the caller's included.
        """
        if len(group) == 1:
            return tf.identity(tensor)
        if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
            raise TypeError(
                "What is gathered over replicas must be numbers or booleans, but received a tensor "
                f"of {tensor.dtype.name}. Gather indices, and look the {tensor.dtype.name}s up "
                "afterwards."
            )
        travels_as = {**_GATHER_AS, **_GATHER_BITS_AS}.get(tensor.dtype, tensor.dtype)
        move = tf.bitcast if tensor.dtype in _GATHER_BITS_AS else tf.cast
        sent = move(tensor, travels_as)
        received = self._apart(
            lambda tensor, **launch: tf.raw_ops.CollectiveGatherV2(input=tensor, **launch),
            sent,
            self._launch("all_gather", sent, group),
        )
        if tensor.shape.rank is not None:
            received.set_shape([None, *tensor.shape[1:]])
        return move(received, tensor.dtype)

    def all_gather_rows(self, tensor: tf.Tensor, group: tuple[int, ...]) -> tf.Tensor:
        """As `all_gather`, for members that hold different numbers of rows.

        Pads to the longest, so that n times its bytes arrive at each member.
        """
        if len(group) == 1:
            return tf.identity(tensor)
        rows = tf.shape(tensor)[0]
        all_rows = self.all_gather(rows[tf.newaxis], group)
        longest = tf.maximum(tf.reduce_max(all_rows), 1)
        padding = [[0, longest - rows]] + [[0, 0]] * (tensor.shape.rank - 1)
        gathered = self.all_gather(tf.pad(tensor, padding), group)
        return tf.boolean_mask(gathered, tf.reshape(tf.sequence_mask(all_rows, longest), [-1]))

    def _launch(self, kind: str, tensor: tf.Tensor, group: tuple[int, ...]) -> dict:
        sequences, rank = sequence.current()
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        call = sequence.Call(kind, tensor.dtype.name, shape, group)
        if group not in self._group_keys:
            self._group_keys.setdefault(group, self._key_of_group(group))
        group_key = self._group_keys[group]
        instance_key = sequences.instance_key(rank, call)
        if not tensor.shape.is_fully_defined():
            # The runtime remembers an instance's shape: a call whose shape varies has a group of
            # its own, in which each shape is an instance.
            group_key, instance_key = instance_key, _shape_key(tensor)
        return {
            "group_size": len(group),
            "group_key": group_key,
            "instance_key": instance_key,
            "ordering_token": captured(self._token(group, rank)),
            "communication_hint": self._hint,
            "timeout_seconds": 0,
            "counter": self._counter(group, rank),
            "text": str(call),
        }

    def _counter(self, group: tuple[int, ...], rank: int) -> Counter | None:
        if self._counters is None:
            return None
        if (group, rank) not in self._counter_of:
            self._counter_of[group, rank] = self._counters.counter(self._devices[rank])
        return self._counter_of[group, rank]

    def _token(self, group: tuple[int, ...], rank: int) -> tf.Tensor:
        # A resource handle that no op reads: ops that take it run in program order on its device.
        if (group, rank) not in self._tokens:
            with tf.init_scope(), tf.device(self._devices[rank]):
                name = f"tfdp_order_{self._group_keys[group]}_{rank}"
                self._tokens[group, rank] = tf.raw_ops.VarHandleOp(
                    dtype=tf.float32, shape=[], shared_name=name
                )
        return self._tokens[group, rank]


def _shape_key(tensor: tf.Tensor) -> tf.Tensor:
    """An int32 that differs between a tensor's shapes: exact for one unknown dimension."""
    if tensor.shape.rank is None:
        powers = tf.pow(tf.constant(31, tf.int64), tf.range(tf.rank(tensor), dtype=tf.int64))
        return tf.cast(tf.reduce_sum((tf.shape(tensor, tf.int64) + 1) * powers) % 2**30, tf.int32)
    key = tf.constant(0, tf.int64)
    sizes = tf.shape(tensor, tf.int64)
    for axis, size in enumerate(tensor.shape):
        if size is None:
            key = key * 65_599 + sizes[axis]
    return tf.cast(key % 2**30, tf.int32)
