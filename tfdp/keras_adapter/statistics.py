"""Statistics that replicas write for themselves are averaged, once, at the end of the step.

Plain BatchNormalization's moving mean and variance are of this kind: a variable without
aggregation, that a replica assigns outside the optimizer. Integers and flags become replica 0's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._keras import Variable
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.step import Step, at_least_float32, current


@hook(Variable, "_direct_assign")
def direct_assign(original: Callable[..., Any], self: Variable, value: Any) -> Any:
    """Notes which statistics the replica writes; an optimizer's writes are alike everywhere."""
    step = current()
    if step is None:
        return original(self, value)
    if step.writes_alike:
        with step.strategy.extended.identical_writes():
            return original(self, value)
    kept_by_replicas = self.value.synchronization != tf.VariableSynchronization.ON_READ
    if kept_by_replicas and self.aggregation == "none":
        step.note_written(self)
    return original(self, value)


def average_written(step: Step) -> None:
    """Makes what the replica wrote by itself one value for all: the last thing in a step."""
    if not step.written or step.num_replicas == 1:
        return
    extended = step.strategy.extended
    for variable in step.written:
        if not variable.value.dtype.is_floating:
            # A count or a flag has no mean: replica 0's holds.
            first = extended.broadcast_from_first(
                tf.convert_to_tensor(variable.value), variable.value.dtype
            )
            with extended.identical_writes():
                variable.value.assign(first, read_value=False)
    variables = [v for v in step.written if v.value.dtype.is_floating]
    share = step.share
    own = [
        tf.cast(tf.convert_to_tensor(v.value), at_least_float32(v.value.dtype)) for v in variables
    ]

    def contribution(values: tf.Tensor) -> tf.Tensor:
        if share is None:
            return values / tf.cast(step.num_replicas, values.dtype)
        # An empty share leaves NaN in its statistics: it is left out, not multiplied by zero.
        return share.scaled(values, share.fraction)

    means = step.sum_prepared(own, contribution)
    with extended.identical_writes():
        for variable, mean in zip(variables, means, strict=True):
            variable.value.assign(tf.cast(mean, variable.value.dtype), read_value=False)
    step.written.clear()
