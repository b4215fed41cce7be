"""The descriptions of a strategy and a model by their public attributes."""

import contextlib
import math
import sys
from typing import Any

from tfdp.base import machine
from tfdp.callbacks.manifest.configuration import configuration
from tfdp.callbacks.manifest.plain import attempted


def strategy_of(model: Any = None) -> Any:
    """Returns the model's strategy, or else the one whose scope is open; None if there is none.

    Loads no TensorFlow.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return None
    strategy = None
    with contextlib.suppress(Exception):  # of a model that cannot be asked
        strategy = getattr(model, "distribute_strategy", None)
    strategy = strategy or tensorflow.distribute.get_strategy()
    # TensorFlow's default where no scope is open; its class has no public name.
    is_default = type(strategy).__name__ == "_DefaultDistributionStrategy"
    return None if is_default else strategy


def described_strategy(strategy: Any) -> dict[str, Any] | None:
    """Returns the strategy's own `describe()`, or else its replicas and devices.

    >>> described_strategy(None) is None
    True
    """
    if strategy is None:
        return None
    name = type(strategy).__name__
    if callable(getattr(strategy, "describe", None)):
        return {"name": name, **strategy.describe()}
    devices = getattr(strategy.extended, "worker_devices", ())
    return {
        "name": name,
        "replicas": int(strategy.num_replicas_in_sync),
        "devices": [machine.short_device_name(device) for device in devices],
    }


def described_model(model: Any) -> dict[str, Any] | None:
    """Returns the name, size and optimizer of a Keras model, and how it is compiled.

    Parameters are counted if the model is built. Where the model fails to answer, a text says so.

    >>> described_model(None) is None
    True
    """
    if model is None:
        return None
    built = attempted(getattr, model, "built", False) is True
    return {
        "name": attempted(lambda: model.name),
        "class": type(model).__name__,
        "parameters": attempted(lambda: _count(model.trainable_variables)) if built else None,
        "parameters_not_trained": (
            attempted(lambda: _count(model.non_trainable_variables)) if built else None
        ),
        "optimizer": attempted(lambda: _optimizer(getattr(model, "optimizer", None))),
        "dtype_policy": attempted(
            lambda: getattr(getattr(model, "dtype_policy", None), "name", None)
        ),
        "steps_per_execution": attempted(getattr, model, "steps_per_execution", None),
        "jit_compile": attempted(getattr, model, "jit_compile", None),
    }


def _optimizer(optimizer: Any) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    return {"class": type(optimizer).__name__, **configuration(optimizer)}


def _count(variables: Any) -> int:
    return sum(math.prod(int(size) for size in variable.shape) for variable in variables)
