"""Variables with a copy on every replica, written by each replica for itself."""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import Value, one_device, replicas_of
from tfdp.strategy._tensorflow import (
    DistributedVariable,
    MirroredVariable,
    SyncOnReadVariable,
    aggregation_of_variable,
    get_update_replica_id,
    in_save_context,
)

_thread = threading.local()


@contextlib.contextmanager
def _having(name: str, value: object) -> Iterator[None]:
    """Sets an attribute of the calling thread while the context is open."""
    outer = getattr(_thread, name, None)
    setattr(_thread, name, value)
    try:
        yield
    finally:
        setattr(_thread, name, outer)


def identical_writes() -> contextlib.AbstractContextManager[None]:
    """Declares that replicas write the same values: nothing is sent to make sure."""
    return _having("identical", True)


def summed_on_read() -> contextlib.AbstractContextManager[None]:
    """Makes variables of which each replica holds a share; outside replicas their sum is read."""
    return _having("summed", True)


def averaged_on_read() -> contextlib.AbstractContextManager[None]:
    """Makes variables of which each replica has its own; outside replicas their mean is read."""
    return _having("averaged", True)


def read_once(values: dict[int, tf.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Reads variables that replicas hold shares of, by id, as these values: nothing is summed."""
    return _having("read", (getattr(_thread, "read", None) or {}) | values)


def noting_sharded(made: list[Any]) -> contextlib.AbstractContextManager[None]:
    """Adds the sharded variables that are made within it to a list."""
    return _having("sharded", made)


def noted_sharded() -> list[Any] | None:
    """Returns the list of `noting_sharded`; None outside of it."""
    found: list[Any] | None = getattr(_thread, "sharded", None)
    return found


def known_value(variable: tf.Variable) -> tf.Tensor | None:
    """Returns the value as which a variable is read within `read_once`; None if it is not."""
    found: tf.Tensor | None = (getattr(_thread, "read", None) or {}).get(id(variable))
    return found


def read_after_round() -> contextlib.AbstractContextManager[None]:
    """Reads weights without asking whether a round is open, in which replicas have their own."""
    return _having("ended", True)


def made_alone() -> contextlib.AbstractContextManager[None]:
    """Makes variables for this process alone: no other rank is asked for their values.

    Keras makes some while it writes a file, which one rank does for all.
    """
    return _having("alone", True)


def is_made_alone() -> bool:
    """Returns whether the calling thread is within `made_alone`."""
    return bool(getattr(_thread, "alone", None))


def placement(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns `kwargs` for a variable's creation, as `summed_on_read` and `averaged_on_read` do.

    A metric's flags and texts have no sum: all replicas have one value, and none has a share.
    """
    how = tf.VariableAggregation
    summed, averaged = (getattr(_thread, name, False) for name in ("summed", "averaged"))
    dtype = tf.as_dtype(kwargs.get("dtype") or tf.float32)
    if dtype in (tf.bool, tf.string) and kwargs.get("aggregation") == how.SUM:
        return kwargs | {"synchronization": tf.VariableSynchronization.ON_WRITE}
    counts = not (dtype.is_floating or dtype.is_complex)
    if not (summed or averaged) or (averaged and counts):
        return kwargs  # a whole number, of which there is no mean, is a count that all have alike
    return kwargs | {
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": how.SUM if summed else how.MEAN,
        "trainable": False,
    }


class _Scalar:
    """Conversions that a variable on one device has and TensorFlow's distributed ones lack."""

    def __float__(self) -> float:
        return float(self.numpy())  # type: ignore[attr-defined]

    def __int__(self) -> int:
        return int(self.numpy())  # type: ignore[attr-defined]


class ReplicaMirroredVariable(_Scalar, MirroredVariable):
    """A variable that replicas keep equal without meeting each other.

    Each replica has a copy; outside of replicas a tape sees the one that is read. For
    `ONLY_FIRST_REPLICA` TensorFlow's class calls `merge_call`, which is impossible inside a
    conditional; this class sends replica 0's value instead.

    Under a `synchronization` replicas have weights of their own within a round. Outside of replica
    functions their mean is read then.

    Attributes:
      apart: For each optimizer that updates it the number of updates in the open round, a variable;
        none where replicas always have one value.
      accumulates: Whether it is an accumulated gradient that is summed already: what others keep
        in shares adds up to it.
    """

    apart: tuple[tf.Variable, ...] = ()
    accumulates: bool = False

    def value(self) -> tf.Tensor:
        """The calling replica's value; outside of replicas the value of all, or their mean."""
        return super().value() if self._is_read_as_any() else self.read_value()

    def _is_read_as_any(self) -> bool:
        """Returns whether the calling replica's copy is meant, or all copies are the same."""
        if not self.apart or getattr(_thread, "ended", False) or one_device.is_traced():
            return True
        return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()

    def _get(self) -> Any:
        # Outside of the scope TensorFlow would return the first copy.
        return super()._get() if self._is_read_as_any() else self._get_cross_replica()

    def _get_cross_replica(self) -> tf.Tensor:
        if not self.apart or getattr(_thread, "ended", False):
            return super()._get_cross_replica()
        known = known_value(self)
        if known is not None:
            return known
        if tf.executing_eagerly():
            if any(int(count.numpy()) for count in self.apart):
                return self.distribute_strategy.extended.mean_of(self)
            return super()._get_cross_replica()
        ended = tf.debugging.Assert(
            tf.reduce_all([tf.equal(count.read_value(), 0) for count in self.apart]),
            [
                "Within a round of the strategy's `synchronization` weights must be read inside of "
                "replica functions, or outside of graphs, where their mean is read, but a "
                f"tf.function reads {self.name!r} outside. Call `strategy.synchronize(model)` "
                "first, on all ranks."
            ],
        )
        with tf.control_dependencies([ended]):
            return tf.identity(super()._get_cross_replica())

    @property
    def handle(self) -> tf.Tensor:
        """The handle of the calling replica's copy; outside of replicas of the one that is read."""
        return self._get_on_device_or_primary().handle

    def __getitem__(self, place: Any) -> Any:
        """A part of the value, whose `assign` writes that part as the variable's writes all."""

        whole = weakref.ref(self)  # a graph keeps the part for longer than anyone has the variable

        def assign(value: Value, name: str | None = None) -> Any:
            variable = whole()
            assert variable is not None
            # TensorFlow's own would write one copy alone.
            return variable._update(lambda copy, value: copy[place].assign(value, name), value)

        part = super().__getitem__(place)
        part.assign = assign
        return part

    def _update_replica(self, update_fn: Callable[..., Any], value: Value, **kwargs: Any) -> Any:
        aggregation = self.aggregation
        alike = getattr(_thread, "identical", False)
        if not alike and aggregation != tf.VariableAggregation.NONE:
            value = self._aggregated(value, aggregation)
        return update_fn(self._get_on_device_or_primary(), value, **kwargs)

    def _aggregated(self, value: Value, aggregation: tf.VariableAggregation) -> Value:
        context = tf.distribute.get_replica_context()
        if aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            replicas = replicas_of(context.strategy)
            assert replicas is not None  # the variable was made in a scope of tfdp's
            return replicas.broadcast_from_first(value, self.dtype)
        mean = aggregation == tf.VariableAggregation.MEAN
        if not (tf.is_tensor(value) or isinstance(value, tf.IndexedSlices)):
            value = tf.convert_to_tensor(value, self.dtype)
            if not mean:
                return self._one_for_all(context, value)
        return context.all_reduce("MEAN" if mean else "SUM", value)

    def _one_for_all(self, context: tf.distribute.ReplicaContext, value: tf.Tensor) -> tf.Tensor:
        """Returns a Python or NumPy value unsummed, as tf.distribute does: no replica owns it.

        In a graph the value is a constant of the one function that all replicas trace. Eagerly a
        replica may have computed it, so the replicas' values are compared.
        """
        if tf.executing_eagerly():
            count = tf.cast(context.num_replicas_in_sync, value.dtype)
            total, own = context.all_reduce("SUM", value), value * count
            alike = np.allclose(np.asarray(total, "complex128"), np.asarray(own, "complex128"))
            if not alike:
                raise ValueError(
                    f"What replicas write into {self.name!r}, a variable with aggregation SUM, "
                    "must be tensors, of which the sum is written, or one Python value for all, "
                    f"but this replica has {value.numpy()} and all together {total.numpy()}. "
                    "Use tf.constant(...) for a replica's own term."
                )
        return value


def _of_one_device(name: str) -> Callable[..., Any]:
    """Returns a method that distributed variables lack, for what is traced as on one device."""

    def method(variable: ReplicaMirroredVariable, *args: Any, **kwargs: Any) -> Any:
        if not one_device.is_traced():
            return getattr(MirroredVariable, name)(variable, *args, **kwargs)
        return getattr(variable.values[0], name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"Writes the variable as `tf.Variable.{name}` does, in a partitioned function."
    return method


for _name in (
    "batch_scatter_update",
    "count_up_to",
    "scatter_nd_add",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_sub",
    "scatter_nd_update",
):
    setattr(ReplicaMirroredVariable, _name, _of_one_device(_name))


class ReplicaSyncOnReadVariable(_Scalar, SyncOnReadVariable):
    """A variable of which each replica holds a share; outside replicas it is aggregated.

    For `ONLY_FIRST_REPLICA` TensorFlow's class reads the first copy of the process; this class
    reads that of rank 0, so that all ranks must read it, as they must what is summed.
    """

    def value(self) -> tf.Tensor:
        """The calling replica's value; outside of replicas the value of all."""
        replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if replica or get_update_replica_id() is not None or not self._is_that_of_rank_0():
            return super().value()
        return tf.convert_to_tensor(self._get_cross_replica())

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        values: Sequence[tf.Variable],
        aggregation: tf.VariableAggregation,
    ) -> None:
        # TensorFlow refuses a mean of what is not real, and computes that of complex numbers.
        of_complex = values[0].dtype.is_complex
        super().__init__(
            strategy, values, tf.VariableAggregation.SUM if of_complex else aggregation
        )
        aggregation_of_variable.set(self, aggregation)

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Writes a replica's share; outside of replicas what is read of all is the value."""
        replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        is_sum = self.aggregation == tf.VariableAggregation.SUM
        if replica or not is_sum or get_update_replica_id() is not None or in_save_context():
            return super().assign(value, use_locking, name, read_value)
        written = self._assign_sum(value)
        return self if read_value else written

    def _assign_sum(self, value: Any) -> tf.Operation | None:
        """Gives the first of all replicas the value, as its share, and the others zeros.

        TensorFlow gives each an equal part: of 13 three whole numbers lose one, and thirds of
        a float are rounded.
        """
        first = self.distribute_strategy.extended.first_rank
        written = []
        for rank, copy in enumerate(self.values, first):
            with tf.device(copy.device):
                share = tf.cast(value, self.dtype)
                written.append(copy.assign(share if rank == 0 else tf.zeros_like(share)))
        return tf.group(*written)

    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Any]]:
        # What restores a file by `tf.train.Checkpoint` is no `assign`.
        factories = super()._gather_saveables_for_checkpoint()
        return {key: functools.partial(self._saveable, made) for key, made in factories.items()}

    def _saveable(self, factory: Callable[..., Any], **kwargs: Any) -> Any:
        saveable = factory(**kwargs)
        if self.aggregation == tf.VariableAggregation.SUM:
            saveable.restore = self._restore_sum
        return saveable

    def _restore_sum(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: object
    ) -> tf.Operation | None:
        return self._assign_sum(*restored_tensors)

    def _get_cross_replica(self) -> tf.Tensor:
        known = known_value(self)
        if known is not None:
            return known
        value = super()._get_cross_replica()
        if not self._is_that_of_rank_0():
            return value
        return self.distribute_strategy.extended.of_first(value)

    def _is_that_of_rank_0(self) -> bool:
        first = self.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
        return first and not (one_device.is_traced() or in_save_context())


CLASS_MAPPING = {
    "VariableClass": DistributedVariable,
    tf.VariableSynchronization.ON_WRITE: ReplicaMirroredVariable,
    tf.VariableSynchronization.ON_READ: ReplicaSyncOnReadVariable,
}
