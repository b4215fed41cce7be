"""The metrics and logs of the global batch, the same on every replica.

Values of the whole batch, which every replica has, are counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.hooks import cover, hook
from tfdp.keras_adapter._keras import StatelessScope, Trainer
from tfdp.keras_adapter.losses.coupling import is_of_whole_batch, weights_of_whole_batch
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Phase, Step, at_least_float32, current
from tfdp.keras_adapter.tracing.layouts import layouts_of
from tfdp.keras_adapter.tracing.marks import is_global, mark_global
from tfdp.keras_adapter.tracing.terms import Kind, UnknownTerm, terms_of
from tfdp.keras_adapter.tracing.walk import Place, Walk
from tfdp.keras_adapter.variables.statistics import end_written, warn_of_undeclared


@hook(Trainer, "get_metrics_result")
def get_metrics_result(original: Callable[..., Any], self: Trainer) -> Any:
    """Returns all metrics' results from one all-reduce of all their variables."""
    step = current()
    if step is None or step.share is None or step.phase is Phase.RESULTS:
        return original(self)
    variables = [variable for metric in self.metrics for variable in metric.variables]
    if step.of_keras:  # the step's last act: what layers wrote can travel with the metrics
        warn_of_undeclared(step, self)
        end_written(step)
    return _result(step, variables, lambda: original(self))


@hook(keras.metrics.Mean, "update_state")
def update_mean(
    original: Callable[..., Any], self: keras.metrics.Mean, values: Any, sample_weight: Any = None
) -> Any:
    """Weighs a scalar by the replica's fraction of the batch, so that the batch counts once.

    On one device a scalar value, or a scalar weight, stands for the whole batch. The fractions of
    the replicas add up to 1, and so do sums over their examples to that over the batch. An integer
    weight is a number of examples, as Keras' own step gives the loss, and adds up by itself.
    """
    step, share = current(), _share()
    scalar_weight = sample_weight is not None and _rank(sample_weight) == 0
    if step is None or share is None or not (_rank(values) == 0 or scalar_weight):
        return original(self, values, sample_weight)
    value = share.select(tf.reduce_mean(tf.cast(values, self.dtype)))
    weight = tf.convert_to_tensor(1.0 if sample_weight is None else sample_weight)
    if weight.shape.rank == 0:
        counts = _rank(values) == 0 and (
            weight.dtype.is_floating or layouts_of(step, Walk()).is_count(Place(weight))
        )
        if counts and _is_sum(step, values, f"the metric {self.name!r}"):
            value = tf.math.divide_no_nan(value, tf.cast(share.fraction, value.dtype))
        if weight.dtype.is_floating:
            weight = share.fraction * tf.cast(weight, share.fraction.dtype)
    return original(self, value, weight)


@hook(keras.metrics.Sum, "update_state")
def update_sum(
    original: Callable[..., Any], self: keras.metrics.Sum, values: Any, sample_weight: Any = None
) -> Any:
    """Scales a scalar, which stands for the batch, unless it is the sum over the share."""
    step, share = current(), _share()
    if step is None or share is None or _rank(values) != 0:
        return original(self, values, sample_weight)
    weight = _weight(step, values, f"the metric {self.name!r}")
    return original(self, share.scaled(tf.cast(values, self.dtype), weight), sample_weight)


@hook(keras.metrics.Metric, "__init__")
def init(original: Callable[..., Any], self: keras.Metric, *args: Any, **kwargs: Any) -> None:
    """Wraps the `result` of a class that was defined under a strategy, before it is used."""
    cover(type(self))
    original(self, *args, **kwargs)


@hook(keras.metrics.Metric, "result", overrides=True)
def result(original: Callable[..., Any], self: keras.Metric, *args: Any, **kwargs: Any) -> Any:
    """Returns the result over all replicas where a step asks a metric of its model for it."""
    step = current()
    if step is None or step.phase is Phase.RESULTS or not step.asks_for_all(self):
        return original(self, *args, **kwargs)
    return _result(step, self.variables, lambda: original(self, *args, **kwargs))


def same_on_all(step: Step, logs: Any) -> Any:
    """Makes the logs that a step returns the same on every replica.

    Results of metrics are the same already. Another floating number is taken as a mean over the
    replica's examples, unless it is seen to be their sum: the sum of the replicas' numbers, each
    times its fraction of the batch, is the mean over the batch. Integers, strings and tensors
    without a fixed shape stay as they are; Keras shows those of replica 0.
    """
    leaves = tf.nest.flatten(logs)
    own = [index for index, leaf in enumerate(leaves) if _is_local_number(leaf)]
    share = step.share
    assert share is not None
    numbers = [tf.cast(leaves[index], at_least_float32(leaves[index].dtype)) for index in own]
    scaled = [share.scaled(number, _weight(step, number, "the logs")) for number in numbers]
    for index, value in zip(own, step.ending.send(scaled), strict=True):
        leaves[index] = tf.cast(value, leaves[index].dtype)
    return tf.nest.pack_sequence_as(logs, leaves)


def _weight(step: Step, value: Any, receiver: str) -> tf.Tensor:
    """Returns the replica's weight of a number: 1 for a sum over its examples, or its fraction."""
    assert step.share is not None
    fraction = step.share.fraction
    return tf.ones_like(fraction) if _is_sum(step, value, receiver) else fraction


def _is_sum(step: Step, value: Any, receiver: str) -> bool:
    """Returns whether a scalar is a sum over the replica's examples; warns if that is not known.

    Args:
      step: The replica's step, with a share.
      value: The scalar.
      receiver: What the step gives it to, for the warning.
    """
    assert step.share is not None
    if step.num_replicas == 1 or not isinstance(value, tf.Tensor) or value.shape.rank != 0:
        return False
    found = "a sum over the examples, and something else"
    try:
        kinds = {term.kind for term in terms_of(step, value, checks=False)}
        if Kind.SUM not in kinds or kinds == {Kind.SUM}:
            return Kind.SUM in kinds
    except UnknownTerm as error:
        found = str(error)
    if step.share.custom_loss != "mean":
        step.warn_once(
            receiver,
            "A number that a step gives to %s is not seen to be a mean or a sum over the examples "
            "of the batch (found %s). It becomes the mean of what the replicas compute of their "
            "own examples, and is not one device's. Compute it of all examples, "
            "`tfdp.whole_batch((y_true, y_pred))`, or of metrics' results.",
            receiver, found,
        )  # fmt: skip
    return False


def _share() -> Share | None:
    step = current()
    return None if step is None else step.share


def _rank(values: Any) -> int | None:
    return values.shape.rank if tf.is_tensor(values) else np.ndim(values)


def _is_local_number(leaf: Any) -> bool:
    if not tf.is_tensor(leaf) or not isinstance(leaf, tf.Tensor):
        return False
    if is_global(leaf):
        return False
    return leaf.dtype.is_floating and leaf.shape.is_fully_defined()


def _result(step: Step, variables: list[Any], compute: Callable[[], Any]) -> Any:
    values = _read_over_replicas(step, variables)
    mapping = list(zip(variables, values, strict=True))
    with step.during(Phase.RESULTS), StatelessScope(state_mapping=mapping):
        result = compute()
    for leaf in tf.nest.flatten(result):
        mark_global(leaf)
    return result


def _read_over_replicas(step: Step, variables: list[Any]) -> list[tf.Tensor]:
    """Reads variables over all replicas, and with the first of them those of all metrics.

    A step may ask for the results one by one: they are one sum as long as no metric is written.
    """
    if not step.ending.is_in_own_graph:
        return _sums(step, variables)
    if any(id(variable) not in step.metric_sums for variable in variables):
        every = [v for metric in step.metrics for v in metric.variables]
        by_id = {id(variable): variable for variable in [*every, *variables]}
        step.metric_sums.update(zip(by_id, _sums(step, list(by_id.values())), strict=True))
    return [step.metric_sums[id(variable)] for variable in variables]


def _sums(step: Step, variables: list[Any]) -> list[tf.Tensor]:
    """Reads each variable as its aggregation says: a sum (the default), mean, or first's value."""
    own = []
    for variable in variables:
        value = tf.convert_to_tensor(variable.value)
        number = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        if variable.aggregation not in ("sum", "mean"):
            number = tf.where(step.of_first, number, tf.zeros_like(number))
        own.append(number)
    values = step.ending.send(own)
    for index, variable in enumerate(variables):
        if variable.aggregation == "mean":
            values[index] = values[index] / tf.cast(step.num_replicas, values[index].dtype)
        values[index] = tf.cast(values[index], variable.value.dtype)
    return values


def _weighing_whole(metric: type[keras.Metric]) -> None:
    @hook(metric, "update_state")
    def update_state(
        original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        """Adds values of the whole batch once: each replica adds its fraction of their weight."""
        step = current()
        if step is None or not is_of_whole_batch(step, values):
            return original(self, values, sample_weight)
        fraction = _fraction(step, self.dtype)
        weight: Any = 1.0 if sample_weight is None else tf.convert_to_tensor(sample_weight)
        if sample_weight is None or weight.shape.rank == 0:
            weight = tf.fill(tf.shape(values), tf.cast(weight, self.dtype) * fraction)
        else:
            weight = tf.cast(weights_of_whole_batch(step, weight), self.dtype) * fraction
        return original(self, values, weight)


_weighing_whole(keras.metrics.Mean)
_weighing_whole(keras.metrics.Sum)


def _fraction(step: Step, dtype: Any) -> tf.Tensor:
    assert step.share is not None
    return tf.cast(step.share.fraction, dtype)
