"""The values of a model, its optimizers and a step's logs, as NumPy arrays by part and path."""

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import sharding_of

# The parts in the order in which a step computes them: the first that differs within a step is the
# likeliest cause.
LOSS, STATE, GRADIENTS = "loss", "layer state", "gradients"
OPTIMIZER, WEIGHTS, METRICS = "optimizer state", "weights", "metrics"
PARTS = (LOSS, STATE, GRADIENTS, OPTIMIZER, WEIGHTS, METRICS)

#: The values of the local replicas, by part and path; one device has one value.
Readings = dict[tuple[str, str], list[np.ndarray]]


def of_model(model: keras.Model) -> Readings:
    """Reads the present weights, layer state and optimizer state of a model."""
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
    """Reads the numbers among a step's logs, without those that a strategy's callbacks add."""
    found: Readings = {}
    for name, value in logs.items():
        if name in ("loss_scale", "skipped_steps"):
            continue
        is_loss = name == "loss" or name.endswith("_loss")
        for ordinal, leaf in enumerate(tf.nest.flatten(value)):
            path = name if not isinstance(value, (dict, list, tuple)) else f"{name}[{ordinal}]"
            array = np.asarray(leaf)
            if array.dtype.kind in "fiubc":
                found[LOSS if is_loss else METRICS, path] = [array]
    return found


def optimizers(model: keras.Model) -> list[Any]:
    """Returns the compiled optimizer and those in the model's attributes, without wrapped ones."""
    kept = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
    compiled = getattr(model, "optimizer", None)
    return list({id(o): o for o in [*kept, compiled] if o is not None}.values())


def copies(variable: Any) -> list[np.ndarray]:
    """Reads a variable's value on each local replica; the whole if each holds a share or a part."""
    value = variable.value
    shares = value.synchronization == tf.VariableSynchronization.ON_READ or sharding_of(value)
    parts = getattr(value, "values", None)
    parts = [value] if parts is None or shares else parts
    return [np.asarray(part.numpy()) for part in parts]


def paths(variables: Iterable[Any]) -> Iterator[tuple[Any, str]]:
    """Yields each variable with its path, which is numbered if several have the same path."""
    seen: dict[str, int] = {}
    for variable in variables:
        count = seen[variable.path] = seen.get(variable.path, 0) + 1
        yield variable, variable.path if count == 1 else f"{variable.path} ({count})"
