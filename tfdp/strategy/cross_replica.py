"""The methods that TensorFlow calls between replica functions: to reduce, gather and mirror.

A value that is not distributed is that of each replica: where a process has one, TensorFlow wraps
none, and where it has several, it unwraps what all of them hold.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import Value
from tfdp.data.distributed.dataset_distribution import DatasetDistribution
from tfdp.strategy._tensorflow import DistributedValues, Mirrored, PerReplica, regroup
from tfdp.strategy.cross_process import (
    CrossProcess,
    check_can_be_joined,
    divide,
    local_sum,
    local_values,
)
from tfdp.strategy.strategy_replicas import StrategyReplicas


class CrossReplica(DatasetDistribution):
    """The part of `DataParallelExtended` that reduces, gathers and mirrors values.

    Attributes:
      replicas: The operations that the replicas do together.
    """

    replicas: StrategyReplicas
    _between: CrossProcess

    @property
    def worker_devices_by_replica(self) -> dict[int, list[str]]:
        """The device of each replica of this process, by its number among all replicas."""
        return {self.first_rank + at: [each] for at, each in enumerate(self.worker_devices)}

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if self.num_replicas == 1:
            return value
        summed = self.replicas.sum_without_gradient(tf.nest.flatten(value), merge_rows=True)
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            summed = [divide(tensor, self.num_replicas) for tensor in summed]
        return tf.nest.pack_sequence_as(value, summed)

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        pairs = [(leaf, destinations) for leaf in tf.nest.flatten(value)]
        return tf.nest.pack_sequence_as(value, self._batch_reduce_to(reduce_op, pairs, options))

    def _batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        mean = reduce_op == tf.distribute.ReduceOp.MEAN
        reduced = [value for value, _ in value_destination_pairs]
        places = [at for at, value in enumerate(reduced) if not (mean and self._is_own_mean(value))]
        own = []
        for at in places:
            if not mean:
                self._check_has_sum(reduced[at])
            with tf.device(self._devices_of(value_destination_pairs[at][1])[0]):
                own.append(local_sum(reduced[at]))
        for at, total in zip(places, self._between.sums(own), strict=True):
            if mean:
                # Of several processes each may have a value of its own, which counts once.
                once = isinstance(reduced[at], DistributedValues) or len(self.worker_devices) == 1
                total = divide(total, self.num_replicas if once else self.processes.world_size)
            reduced[at] = self._placed(total, value_destination_pairs[at][1])
        return reduced

    def _is_own_mean(self, value: Any) -> bool:
        """Returns whether all replicas are known to have the value, which is its own mean then."""
        alone = self.processes.world_size == 1
        return isinstance(value, Mirrored) or (alone and not isinstance(value, DistributedValues))

    def _check_has_sum(self, value: Any) -> None:
        plain = not isinstance(value, DistributedValues) and len(self.worker_devices) > 1
        if plain or (isinstance(value, Mirrored) and self.num_replicas > 1):
            raise ValueError(
                "What is summed over replicas must be a value of each replica, but received a "
                f"{type(value).__name__} that all of them share. Give each replica its own: let "
                "the function that `strategy.run` is given return tf.identity(value). Or multiply "
                "it by `num_replicas_in_sync`."
            )

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        if not isinstance(value, DistributedValues):
            if not isinstance(value, (tf.IndexedSlices, tf.RaggedTensor)):
                value = tf.convert_to_tensor(value)
            value = PerReplica([value] * len(self.worker_devices))
        if any(isinstance(part, tf.IndexedSlices) for part in value.values):
            raise NotImplementedError(
                "What is gathered over replicas must be tensors, but received IndexedSlices. "
                "Gather their `values` and their `indices`, or tf.convert_to_tensor(slices)."
            )
        check_can_be_joined(value, axis)
        with tf.device(self._devices_of(destinations)[0]):
            rows = axis == 0  # which may be ragged
            gathered = (
                self._between.gather_rows(value) if rows else self._between.gather(value, axis)
            )
        return self._placed(gathered, destinations)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        if isinstance(tensor, (float, int)):
            return tensor  # what it is added to decides on its dtype
        return self._placed(self.of_first(tensor), destinations)

    def of_first(self, value: Value) -> Value:
        """Returns the value that rank 0 has; all processes must call it."""
        return self._between.of_first(value)

    def _placed(self, value: Value, destinations: Any) -> Any:
        """Copies a value to the devices of `destinations`."""
        copies = []
        for device in self._devices_of(destinations):
            with tf.device(device):
                copies.append(tf.identity(value))
        return regroup(copies, wrap_class=Mirrored)

    def _devices_of(self, destinations: Any) -> Sequence[str]:
        """Returns the devices that `destinations` names; those of the replicas if it names none.

        A number, an array and a tensor of a graph, such as its input, are nowhere yet.
        """
        if isinstance(destinations, str):
            named = [destinations]
        else:
            named = [getattr(each, "device", "") for each in local_values(destinations)]
        return named if all(named) else self.worker_devices
