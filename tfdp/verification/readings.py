"""What a model, its optimizers and a step's logs hold, as NumPy arrays by part and path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# In the order in which a step makes them: what parts first within a step is the likeliest cause.
LOSS, STATE, GRADIENTS = "loss", "layer state", "gradients"
OPTIMIZER, WEIGHTS, METRICS = "optimizer state", "weights", "metrics"
PARTS = (LOSS, STATE, GRADIENTS, OPTIMIZER, WEIGHTS, METRICS)

#: For a part and a path the value of each local replica; one device has one.
Readings = dict[tuple[str, str], list[np.ndarray]]


def of_model(model: keras.Model) -> Readings:
    """Weights, layer state and optimizer state, now."""
    trained = {id(variable) for variable in model.trainable_variables}
    found: Readings = {}
    for variable, path in paths(model.variables):
        part = WEIGHTS if id(variable) in trained else STATE
        found[part, path] = copies(variable)
    variables = [v for optimizer in optimizers(model) for v in optimizer.variables]
    for variable, path in paths(variables):
        found[OPTIMIZER, path] = copies(variable)
    return found


def of_logs(logs: dict[str, Any]) -> Readings:
    """The numbers among a step's logs. What callbacks of a strategy add is not among them."""
    found: Readings = {}
    for name, value in logs.items():
        if name in ("loss_scale", "skipped_steps"):
            continue
        is_loss = name == "loss" or name.endswith("_loss")
        for ordinal, leaf in enumerate(tf.nest.flatten(value)):
            path = name if not isinstance(value, (dict, list, tuple)) else f"{name}[{ordinal}]"
            array = np.asarray(leaf)
            if array.dtype.kind in "fiub":
                found[LOSS if is_loss else METRICS, path] = [array]
    return found


def optimizers(model: keras.Model) -> list[Any]:
    """The compiled optimizer and those that the model keeps as attributes, not what they wrap."""
    kept = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
    compiled = getattr(model, "optimizer", None)
    return list({id(o): o for o in [*kept, compiled] if o is not None}.values())


def copies(variable: Any) -> list[np.ndarray]:
    """A variable's value on each local replica; of what replicas hold shares of, their sum."""
    value = variable.value
    shares = value.synchronization == tf.VariableSynchronization.ON_READ
    parts = getattr(value, "values", None)
    parts = [value] if parts is None or shares else parts
    return [np.asarray(part.numpy()) for part in parts]


def paths(variables: Iterable[Any]) -> Iterator[tuple[Any, str]]:
    """Each variable with its path, numbered where several have the same."""
    seen: dict[str, int] = {}
    for variable in variables:
        count = seen[variable.path] = seen.get(variable.path, 0) + 1
        yield variable, variable.path if count == 1 else f"{variable.path} ({count})"
