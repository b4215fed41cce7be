"""Reductions between replica functions (`reduce`, `gather`), made once for each process.

While a graph is being built, a collective between the first replicas of all processes makes them;
eagerly, the processes make them by themselves.
"""

import functools
import weakref
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.communication.collectives import map_values, payloads, text_rows
from tfdp.communication.engines import Engine, Sequences
from tfdp.communication.replicas import Agreement, ProcessGroup, Rows, Value
from tfdp.strategy._tensorflow import DistributedValues


class CrossProcess:
    """Reduces values of this process' replicas over all processes.

    Args:
      devices: The devices of this process' replicas.
      processes: All processes.
      engine: The collectives between all replicas.
      agreement: Brings the processes' graphs to the same collectives.
    """

    def __init__(
        self,
        devices: Sequence[str],
        processes: ProcessGroup,
        engine: Engine,
        agreement: Agreement,
    ) -> None:
        self._devices = devices
        self._processes = processes
        self._engine = engine
        self._agreement = agreement
        self._first_rank = processes.rank * processes.local_size
        num_replicas = processes.world_size * processes.local_size
        self._leaders = tuple(range(0, num_replicas, processes.local_size))
        self._sequences: weakref.WeakKeyDictionary[tf.Graph, Sequences] = (
            weakref.WeakKeyDictionary()
        )

    def sums(self, values: Sequence[Value]) -> list[Value]:
        """Returns the sum of each value over the processes."""
        if self._processes.world_size == 1:
            return list(values)
        numbers = list(map(payloads.as_summed, values))
        if tf.executing_eagerly():
            sums = self._processes.sum_eagerly(numbers)
        else:
            parts = (functools.partial(self._sum_in_graph, number) for number in numbers)
            sums = list(map(self._collective, parts))
        pairs = zip(sums, values, strict=True)
        return [payloads.as_before(total, value.dtype) for total, value in pairs]

    def of_all_processes(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the number, or the vector of them, that each process has, in order of ranks."""
        rank, world_size = self._processes.rank, self._processes.world_size
        own = [numbers if rank == each else tf.zeros_like(numbers) for each in range(world_size)]
        return self.sums([tf.stack(own)])[0]

    def of_first(self, value: Value) -> Value:
        """Returns the value that rank 0 has; those of the others are of the same shape."""
        if self._processes.world_size == 1:
            return value
        if isinstance(value, tf.IndexedSlices):
            values, indices = self.of_first(value.values), self.of_first(value.indices)
            return tf.IndexedSlices(values, indices, value.dense_shape)
        return self.gather(tf.convert_to_tensor(value)[tf.newaxis], 0)[0]

    def gather(self, value: Rows, axis: int) -> tf.Tensor:
        """Concatenates the values of all replicas, of any dtype, along `axis`.

        Raises:
          ValueError: This process' values have different numbers of axes, or no such axis.
        """
        check_can_be_joined(value, axis)
        if self._processes.world_size == 1:
            return tf.concat(local_values(value), axis)
        own = tf.concat([tf.convert_to_tensor(part) for part in local_values(value)], axis)
        if tf.executing_eagerly():
            return self._processes.gather_eagerly(own, axis)
        return self._collective(lambda: self._gather_in_graph(own, axis))

    def gather_rows(self, value: Rows) -> Rows:
        """Concatenates the rows of all replicas, in order; tensors may be ragged."""
        local = local_values(value)
        if not isinstance(local[0], tf.RaggedTensor):
            return self.gather(value, 0)
        own = tf.concat(local, 0)
        gathered = self.gather_rows(own.flat_values)
        for lengths in reversed(own.nested_row_lengths()):
            gathered = tf.RaggedTensor.from_row_lengths(gathered, self.gather_rows(lengths))
        return gathered

    def _sum_in_graph(self, value: Value) -> Value:
        if isinstance(value, tf.IndexedSlices):
            rows = self._engine.all_gather_rows
            return tf.IndexedSlices(
                rows(value.values, self._leaders),
                rows(value.indices, self._leaders),
                value.dense_shape,
            )
        return self._engine.all_reduce(value, self._leaders)

    def _gather_in_graph(self, own: tf.Tensor, axis: int) -> tf.Tensor:
        order = list(range(own.shape.rank))
        order[0], order[axis] = order[axis], order[0]
        rows = tf.transpose(own, order) if axis else own
        gathered = text_rows.gather_any(
            rows, None, lambda own, _: self._engine.all_gather_rows(own, self._leaders)
        )
        return tf.transpose(gathered, order) if axis else gathered

    def _collective(self, collective: Callable[[], Value]) -> Value:
        """Runs `collective` on this process' first device, for the whole process."""
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._sequences:
            self._sequences[graph] = self._agreement.new_sequences()
        sequences = self._sequences[graph]
        with tf.device(self._devices[0]), sequences.going_on(self._first_rank):
            result = collective()
        self._agreement.reach(sequences, getattr(graph, "name", "a graph"))
        return result


def local_values(
    value: Rows | Value | tf.distribute.DistributedValues,
) -> tuple[Rows | Value, ...]:
    """Returns the values of this process' replicas; one, where all have the same."""
    return value.values if isinstance(value, DistributedValues) else (value,)


def local_sum(value: Value | tf.distribute.DistributedValues) -> Value:
    """Sums the values of this process' replicas; of slices, every row is kept.

    Raises:
      TypeError: There are several, and they are no numbers.
    """
    local = local_values(value)
    if not all(isinstance(part, tf.IndexedSlices) for part in local):
        local = tuple(map(tf.convert_to_tensor, local))
        if len(local) == 1:
            return local[0]
    return payloads.as_before(_added(list(map(payloads.as_summed, local))), local[0].dtype)


def _added(local: Sequence[Value]) -> Value:
    if isinstance(local[0], tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([part.values for part in local], 0),
            tf.concat([part.indices for part in local], 0),
            local[0].dense_shape,
        )
    return tf.add_n(local)


def divide(value: Value, count: int) -> Value:
    """Divides a tensor or IndexedSlices by a number."""
    return map_values(lambda tensor: tensor / tf.cast(count, tensor.dtype), value)


def check_can_be_joined(value: Rows, axis: int) -> None:
    """Raises ValueError unless all values have as many axes, among them `axis`."""
    shapes = [tf.TensorShape(local.shape) for local in getattr(value, "values", (value,))]
    ranks = {shape.rank for shape in shapes if shape.rank is not None}
    if len(ranks) > 1 or any(not -rank <= axis < rank for rank in ranks):
        raise ValueError(
            f"`gather` must be given values with the same number of axes and an axis {axis} on all "
            f"replicas, but received the shapes {', '.join(map(str, shapes))}. Bring them into one "
            "form first, such as tf.reshape(value, [-1, size])."
        )
