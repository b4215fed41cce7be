"""Variables that replicas make and write in `strategy.run`: what they write becomes one value.

- "sum": what each replica adds is added up.
- "mean": the variable becomes the mean of the replicas' values.
- "only_first_replica": replica 0's value holds.
- "none", Keras' default: the variable becomes that mean once, at the end of the step; integers and
  flags become replica 0's. BatchNormalization's moving statistics are of this kind.

Metrics' variables hold a share per replica, and are summed when they are read outside.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.collectives import payloads
from tfdp.communication.replicas import HasLayout
from tfdp.keras._keras import KerasVariable, Variable, value_of_variable
from tfdp.keras.replica_step import Phase, ReplicaStep, current

_DECLARED = ("sum", "mean")


@hook(KerasVariable, "assign_add")
def assign_add(original: Callable[..., Any], self: Variable, value: Any) -> Any:
    """Adds what all replicas add together, where the variable declares an aggregation."""
    return _added(original, self, value)


@hook(KerasVariable, "assign_sub")
def assign_sub(original: Callable[..., Any], self: Variable, value: Any) -> Any:
    """Subtracts what all replicas subtract together, as `assign_add` adds."""
    return _added(original, self, value)


@hook(Variable, "_direct_assign")
def direct_assign(original: Callable[..., Any], self: Variable, value: Any) -> Any:
    """Writes what all replicas write together; an optimizer's writes are alike everywhere."""
    if tf.executing_eagerly():
        variable = value_of_variable(self)
        if variable.synchronization == tf.VariableSynchronization.ON_READ:
            # What would be read, of all replicas, is what Keras does not use.
            variable.assign(tf.cast(value, variable.dtype), read_value=False)
            return None
    step = current()
    if step is None or _has_shares(self):
        return original(self, value)
    if step.writes_alike:
        with step.replicas.identical_writes():
            return original(self, value)
    if self.aggregation != "none":
        return original(self, value)
    step.note_written(self)
    return original(self, value)


def average_written(step: ReplicaStep) -> None:
    """Makes one value for all of what each replica wrote by itself: the last act of a step."""
    written = list(step.written)
    step.written.clear()
    if step.num_replicas == 1 or not written:
        return
    by_dtype: dict[tf.DType, list[Variable]] = {}
    for variable in written:
        by_dtype.setdefault(_summed_as(variable.value.dtype), []).append(variable)
    sums = step.replicas.sum([_partial(step, *each) for each in by_dtype.items()])
    for variables, total in zip(by_dtype.values(), sums, strict=True):
        _write_all(step, variables, total)


def _partial(step: ReplicaStep, dtype: tf.DType, variables: Sequence[Variable]) -> tf.Tensor:
    """Returns a replica's part in the values of variables of one dtype, flat."""
    now = [tf.convert_to_tensor(variable.value) for variable in variables]
    own = tf.concat([tf.reshape(tf.cast(value, dtype), [-1]) for value in now], axis=0)
    if not dtype.is_integer:
        return own / tf.cast(step.num_replicas, dtype)
    # The mean of counts or flags may be neither: replica 0's holds.
    return own if step.rank == 0 else tf.zeros_like(own)


def _write_all(step: ReplicaStep, variables: Sequence[Variable], total: tf.Tensor) -> None:
    parts = tf.split(total, [v.value.shape.num_elements() for v in variables])
    with step.replicas.identical_writes():
        for variable, part in zip(variables, parts, strict=True):
            value = tf.cast(tf.reshape(part, variable.value.shape), variable.value.dtype)
            variable.value.assign(value, read_value=False)


def _summed_as(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which a variable's values are summed.

    Raises:
      TypeError: They are texts.
    """
    if dtype == tf.string:
        raise TypeError(
            "What replicas write into a Keras variable in `strategy.run` must be numbers or "
            "booleans, of which one value is made for all, but received string. Call the function "
            "by `strategy.partitioned`, or write the variable outside of `strategy.run`."
        )
    if dtype.is_integer or dtype.is_bool:
        return tf.int32 if dtype.size < 4 or dtype == tf.int32 else tf.int64
    return payloads.precise(dtype)


def _added(original: Callable[..., Any], variable: Variable, value: Any) -> Any:
    step = current()
    if (
        step is None
        or step.writes_alike
        or step.num_replicas == 1
        or variable.aggregation not in _DECLARED
        or _has_shares(variable)
    ):
        return original(variable, value)
    value = tf.cast(tf.convert_to_tensor(value), variable.value.dtype)
    with step.during(Phase.WRITE):
        return original(variable, _together(step, variable, value))


def _together(step: ReplicaStep, variable: Variable, value: tf.Tensor) -> tf.Tensor:
    """Returns the sum, or the mean, of what the replicas add."""
    if variable.aggregation == "sum":
        return step.replicas.sum([value])[0]
    (total,) = step.replicas.sum([tf.cast(value, payloads.precise(value.dtype))])
    return tf.cast(total / tf.cast(step.num_replicas, total.dtype), value.dtype)


def _has_shares(variable: Variable) -> bool:
    return bool(variable.value.synchronization == tf.VariableSynchronization.ON_READ)


@hook(Variable, "_initialize")
def initialize(original: Callable[..., Any], self: Variable, value: Any) -> None:
    """Makes a variable for all replicas, in the first one; the others find the layer built.

    Where a compiler lays out variables by their paths, it is told the variable's.
    """
    with contextlib.nullcontext() if current() is None else tf.init_scope():
        original(self, value)
    made = value_of_variable(self)
    if isinstance(made, HasLayout):
        made.path = self.path
