"""Writes of replicas into a model's variables, which become one value as the aggregation says.

- "sum": what each replica adds is added up.
- "mean": the variable becomes the mean of the replicas' values, weighted by examples.
- "only_first_replica": replica 0's value holds.
- "none", Keras' default: the variable becomes that mean once, at the end of the step; integers and
  flags become replica 0's. Plain BatchNormalization's moving statistics are of this kind. Nobody
  said that a mean is right, so a warning names a variable that may have been written differently,
  unless a layer of Keras holds it.

Metrics' variables hold a share per replica, and are summed when results are computed: a metric must
add to them. A metric's variable with the aggregation "mean" holds the mean over all replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.hooks import hook
from tfdp.keras_adapter._keras import (
    KerasVariable,
    Variable,
    flatten_layers,
    own_state,
    own_trainable,
)
from tfdp.keras_adapter._tensorflow import is_computed_again
from tfdp.keras_adapter.ending import Slot
from tfdp.keras_adapter.step import Phase, Step, at_least_float32, current
from tfdp.keras_adapter.tracing import writes
from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.variables import branches
from tfdp.keras_adapter.variables.apart import apart_of

_DECLARED = ("sum", "mean")

_CONTEXT = "where `context = tf.distribute.get_replica_context()` is not None"


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
    step = current()
    if step is None:
        return original(self, value)
    if self.value.synchronization == tf.VariableSynchronization.ON_READ:
        step.metric_sums.clear()
    if is_computed_again():
        raise GradientError(
            "What is computed again in the backward pass (`tf.recompute_grad`, keras.RematScope) "
            f"must write no variable, but {step.trace.name} writes {self.path!r} there, for the "
            "second time in the step, as on one device. Take layers with a state, such as "
            "BatchNormalization, out of what is computed again."
        )
    if step.writes_alike:
        with step.replicas.identical_writes():
            return original(self, value)
    if self.trainable and _is_alike([value], step.written):
        # The replicas stay alike, as where a step moves weights along a summed gradient and back.
        branches.note(step, f"write {self.path!r}")
        with step.replicas.identical_writes():
            return original(self, value)
    if apart_of(self) and _is_alike([value], step.written, own_gradients=True):
        # Each replica moves its own weights by its own gradient.
        with step.replicas.identical_writes():
            return original(self, value)
    if self.value.synchronization == tf.VariableSynchronization.ON_READ:
        return original(self, _state_of_metric(step, self, value))
    if self.aggregation == "none":
        alike = _is_seen(step, value) and _is_alike([value], step.differing)
        if alike and _is_symbolic(value) and step.ending.is_in_own_graph:
            # Surely done by all: a mean would change a counter of floats in its last bit.
            with step.replicas.identical_writes():
                return original(self, value)
        step.note_written(self, may_differ=not alike)
        branches.note(step, None, self)
        if not alike:  # a counter of steps goes on where there are no examples, too
            value = _unless_stand_in(step, self, value)
        with step.during(Phase.NOTED):
            return original(self, value)
    if self.aggregation not in _DECLARED or step.share is None:
        return original(self, _unless_stand_in(step, self, value))
    together = _together_absolute(step, self, value)
    with step.replicas.identical_writes():
        return original(self, together)


def _is_alike(
    values: Sequence[Any], written: Sequence[Variable] = (), own_gradients: bool = False
) -> bool:
    """Returns whether replicas surely have the same; in variables `written` they may differ.

    Args:
      values: The values.
      written: The variables.
      own_gradients: Whether weights and gradients that replicas have by themselves count as alike.
    """
    alike = Origin.SUM | Origin.TOGETHER
    if own_gradients:
        alike |= Origin.UPDATE | Origin.APART
    return not origins(values, written) & ~alike


def _unless_stand_in(step: Step, variable: Variable, value: Any) -> Any:
    """Returns `value`; the variable's own where a stand-in made `value`, to leave no state."""
    if step.share is None or not step.share.may_be_empty:
        return value
    now = tf.convert_to_tensor(variable.value)
    return tf.where(step.share.has_examples, tf.cast(value, now.dtype), now)


def check_unmanaged(variable: tf.Variable, value: Any) -> None:
    """Checks a value that a replica writes into a `tf.Variable` without an aggregation.

    Nothing makes one value of what several replicas write there: they would part for good.

    Raises:
      ValueError: A step of Keras' trainer does not show that all replicas write the same.
    """
    step = current()
    if step is None or step.share is None or step.num_replicas == 1:
        return
    if step.phase not in (Phase.PROGRAM, Phase.COMPILED):
        return
    tensors = [t for t in tf.nest.flatten(value, expand_composites=True) if _is_seen(step, t)]
    branches.note(step, f"write {variable.name!r}")
    if not _is_alike(tensors, step.differing):
        raise ValueError(
            f"What a step writes into {variable.name!r}, a `tf.Variable` without an aggregation, "
            "must be the same on all replicas, but it depends on the replica's own examples or "
            "random numbers. Make the variable with `self.add_weight(trainable=False, "
            'aggregation=...)`: "mean" for what is a mean over the batch\'s examples, "sum" for '
            "what is added with `assign_add`."
        )


def check_part(variable: tf.Variable) -> None:
    """Checks that a step may write a part of a variable, as `variable[:2].assign(...)` does.

    Raises:
      ValueError: Its aggregation weighs or counts examples, which is done for wholes alone.
    """
    step = current()
    if step is None or step.share is None or step.num_replicas == 1:
        return
    if variable.aggregation in (tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM):
        raise ValueError(
            "In a step a variable with the aggregation 'mean' or 'sum' must be written whole, but "
            f"some places of {variable.name!r} were assigned. Write `variable.assign("
            "keras.ops.slice_update(variable, start, values))`."
        )


def average_written(step: Step) -> None:
    """Makes one value for all of what each replica wrote by itself: the last act of a step."""
    end_written(step)
    step.ending.send([])


def end_written(step: Step) -> None:
    """Lets what each replica wrote by itself become one value with the next sum at the end."""
    if step.num_replicas == 1:
        return
    by_dtype: dict[tf.DType, list[Variable]] = {}
    for variable in step.written:
        by_dtype.setdefault(_summed_as(variable.value.dtype), []).append(variable)
    step.written.clear()
    for dtype, variables in by_dtype.items():
        # One tensor for all of them: each costs an operation that leaves stand-ins out.
        flat = [tf.reshape(tf.cast(_now(v), dtype), [-1]) for v in variables]
        own = flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)
        # The mean of counts or flags may be neither: replica 0's holds.
        own = _weighted(step, own) if dtype.is_floating else _of_first(step, own)
        name = f"statistics in {dtype.name}"
        step.ending.put(name, Slot([own], functools.partial(_write_all, step, variables)))


def _write_all(step: Step, variables: Sequence[Variable], sums: Sequence[tf.Tensor]) -> None:
    sizes = [v.value.shape.num_elements() for v in variables]
    parts = tf.split(sums[0], sizes)
    with step.replicas.identical_writes():
        for variable, part in zip(variables, parts, strict=True):
            value = tf.cast(tf.reshape(part, variable.value.shape), variable.value.dtype)
            variable.value.assign(value, read_value=False)


def _now(variable: Variable) -> tf.Tensor:
    return tf.convert_to_tensor(variable.value)


def _of_first(step: Step, value: tf.Tensor) -> tf.Tensor:
    return tf.where(step.of_first, value, tf.zeros_like(value))


def _summed_as(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which a variable's values are summed."""
    if dtype.is_floating:
        return at_least_float32(dtype)
    return tf.int32 if dtype.is_bool or dtype.size < 4 or dtype == tf.int32 else tf.int64


def warn_of_undeclared(step: Step, model: keras.Model) -> None:
    """Warns once of each variable that replicas may have written differently, but for Keras' own.

    Raises:
      ValueError: See `branches.check`.
    """
    branches.check(step)
    if not step.trace.of_first or step.num_replicas == 1:
        return
    undeclared = [v for v in step.written if any(v is other for other in step.differing)]
    if not undeclared:
        return
    holders = {
        id(held): layer
        for layer in flatten_layers(model)
        for held in [*own_trainable(layer), *own_state(layer)]
    }
    for variable in undeclared:
        holder = holders.get(id(variable))
        if type(holder).__module__.partition(".")[0] != "keras":
            _warn_once(step, holder, variable)


def _warn_once(step: Step, holder: Any, variable: Variable) -> None:
    becomes = (
        "the mean of what they write, weighted by examples: right where that is a mean over the "
        "batch's examples, and in nothing else"
        if variable.value.dtype.is_floating
        else "what replica 0 writes"
    )
    writer = "The step" if holder is None else f"{type(holder).__name__} {holder.name!r}"
    step.warn_once(
        variable.path,
        "%s writes %r from the batch, and does not say what is to become of what several replicas "
        "write. It becomes %s. Say so where the variable is made, in `add_weight` or "
        "`keras.Variable`: aggregation='mean', or aggregation='sum' for what is added with "
        "`assign_add`, or 'only_first_replica' for what is the same on all.",
        writer, variable.path, becomes,
    )  # fmt: skip


def _added(original: Callable[..., Any], variable: Variable, value: Any) -> Any:
    step = current()
    if step is not None and _is_term_of_metric(step, variable):
        _check_own_term(variable, value)
    if (
        step is None
        or step.writes_alike
        or step.num_replicas == 1
        or variable.aggregation not in _DECLARED
        or variable.value.synchronization == tf.VariableSynchronization.ON_READ
    ):
        return original(variable, value)
    value = tf.cast(tf.convert_to_tensor(value), variable.value.dtype)
    own_terms = variable.aggregation == "sum" and step.share is not None
    if own_terms and _is_symbolic(value) and writes.depends_on(variable.value.handle, value):
        raise _no_term_of_a_sum(variable)
    if own_terms and _is_of_no_example(step, value):
        branches.note(step, f"write {variable.path!r}")
        together = value
    else:
        together = _together(step, variable, value)
    with step.during(Phase.WRITE):
        return original(variable, together)


def _is_of_no_example(step: Step, value: tf.Tensor) -> bool:
    """Returns whether a term has surely nothing of the examples in it, such as 1 for each batch.

    Where tracing knows how many examples a share has, a constant may be their number.
    """
    assert step.share is not None
    unknown = _is_symbolic(value) and step.share.rows is None
    return unknown and _is_alike([value], step.differing)


def _is_term_of_metric(step: Step, variable: Variable) -> bool:
    state = variable.value.synchronization == tf.VariableSynchronization.ON_READ
    several = step.share is not None and step.num_replicas > 1 and step.phase is Phase.PROGRAM
    return state and several and variable.aggregation == "sum"


def _check_own_term(variable: Variable, value: Any) -> None:
    """Raises ValueError if all replicas add the same, which the sum would count repeatedly."""
    if not _is_symbolic(value):
        return
    found = origins([value])
    if found & Origin.TOGETHER and not found & (Origin.DATA | Origin.RANDOM):
        raise ValueError(
            "The replicas' states of a metric are summed, so that each replica must add its own "
            f"examples' term, but what is added to {variable.path!r} is that of all replicas. Let "
            "a function that `compile` is given as a metric return it, or give it to "
            "`keras.metrics.Mean` or `Sum`, which count it once; or make the state with "
            "aggregation='only_first_replica'."
        )


def _together(step: Step, variable: Variable, value: tf.Tensor) -> tf.Tensor:
    """Returns the sum, or the mean weighted by examples, of what the replicas write or add."""
    if variable.aggregation == "sum":
        own = value if step.share is None else step.share.select(value)
        return step.sum([own])[0]
    precise = tf.cast(value, at_least_float32(value.dtype))
    return tf.cast(step.sum([_weighted(step, precise)])[0], value.dtype)


def _together_absolute(step: Step, variable: Variable, value: tf.Tensor) -> tf.Tensor:
    """Returns what a variable becomes if each replica assigns its `value` to it.

    A sum's new values that hold the variable's old value would count that once for each replica.
    So the replicas' differences from the old value are summed, and added to it once.
    """
    if variable.aggregation == "mean":
        return _together(step, variable, value)
    handle = variable.value.handle  # belongs to the calling replica's copy
    if not _is_symbolic(value) or not writes.depends_on(handle, value):
        return _together(step, variable, value)
    if not writes.adds_to(handle, value):
        raise _no_term_of_a_sum(variable)
    before = tf.convert_to_tensor(variable.value)
    return before + _together(step, variable, tf.cast(value, before.dtype) - before)


def _no_term_of_a_sum(variable: Variable) -> ValueError:
    return ValueError(
        f"What is written into {variable.path!r}, with aggregation='sum', must be this replica's "
        "term of a sum, added with `assign_add`, but it is computed from the variable's own value, "
        "which would be summed too. For a moving average of a mean use aggregation='mean'; of a "
        f"sum, take that over the replicas first, `x = context.all_reduce('SUM', x)`, {_CONTEXT}, "
        "and use aggregation='only_first_replica'."
    )


def _state_of_metric(step: Step, variable: Variable, value: Any) -> Any:
    if step.share is None or step.num_replicas == 1 or step.phase is not Phase.PROGRAM:
        return value
    if variable.aggregation == "mean":
        return _together(step, variable, tf.cast(value, variable.value.dtype))
    constant = constant_value(value)
    if constant is not None and not constant.any():
        return value  # A reset: all replicas set their shares to zero, also those without examples.
    symbolic_sum = variable.aggregation == "sum" and _is_symbolic(value)
    if not symbolic_sum or writes.adds_to(variable.value.handle, value):
        return _unless_stand_in(step, variable, value)
    raise ValueError(
        "The replicas' states of a metric are summed, so that `update_state` must add to them, but "
        f"{variable.path!r} is written otherwise. Use `assign_add` for what adds up over examples. "
        "For a mean over the batch's examples make the state with `self.add_variable(..., "
        "aggregation='mean')`; for anything else compute it from the whole batch, `x = "
        "tfdp.whole_batch(x)`, with aggregation='only_first_replica'."
    )


def _weighted(step: Step, values: tf.Tensor) -> tf.Tensor:
    """Returns the replica's term of the mean: the fractions, or 1 / replicas, add up to 1."""
    if step.share is None:
        return values / tf.cast(step.num_replicas, values.dtype)
    # A stand-in's values may be NaN, which times zero is NaN: `scaled` selects zeros instead.
    return step.share.scaled(values, step.share.fraction)


def _is_seen(step: Step, value: Any) -> bool:
    """Returns whether a tensor's origin is known: in graphs, and in steps of Keras' trainer."""
    return tf.is_tensor(value) and (_is_symbolic(value) or step.share is not None)


def _is_symbolic(value: Any) -> bool:
    return bool(tf.is_symbolic_tensor(value))
