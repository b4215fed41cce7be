"""Logs of each rank's own, where a step must not wait for what other ranks would add to them."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.communication.replicas import Value
from tfdp.keras.optimizer.per_replica_updates import call


def with_own_logs(model: Any, step_function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step whose logs, if they are the model's metrics, are those of the rank's rows.

    Keras reads the metrics again at the end of an epoch, then of all ranks.

    Args:
      model: The model that the step trains.
      step_function: The step.
    """

    @functools.wraps(step_function)
    def step(data: Any) -> Any:
        logs = step_function(data)
        variables = [each for metric in model.metrics for each in metric.variables]
        values = [tf.convert_to_tensor(each.value) for each in variables]
        own = call(values, lambda _, held, are_own: held, _as_they_are, beside=True)
        with keras.StatelessScope(state_mapping=list(zip(variables, own, strict=True))):
            found = model.get_metrics_result()
        is_of_metrics = isinstance(logs, dict) and logs.keys() == found.keys()
        return found if is_of_metrics else logs

    return step


def _as_they_are(values: list[Value]) -> list[Value]:
    return values
