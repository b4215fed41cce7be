"""What a strategy and a model say of themselves, by their public attributes."""

from __future__ import annotations

import math
import sys
from typing import Any

from tfdp import machine


def strategy_of(model: Any = None) -> Any:
    """The model's strategy, or else the one whose scope is open; None: there is none.

    Loads no TensorFlow.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return None
    strategy = getattr(model, "distribute_strategy", None) or tensorflow.distribute.get_strategy()
    # What TensorFlow has where no scope is open; its class has no public name.
    is_default = type(strategy).__name__ == "_DefaultDistributionStrategy"
    return None if is_default else strategy


def described_strategy(strategy: Any) -> dict[str, Any] | None:
    """What the strategy's own `describe()` says; of others their replicas and devices.

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
    """Name, size, optimizer and how it is compiled, of a Keras model.

    Parameters are counted where the model is built.

    >>> described_model(None) is None
    True
    """
    if model is None:
        return None
    optimizer, policy = getattr(model, "optimizer", None), getattr(model, "dtype_policy", None)
    built = getattr(model, "built", False)
    return {
        "name": model.name,
        "class": type(model).__name__,
        "parameters": _count(model.trainable_variables) if built else None,
        "parameters_not_trained": _count(model.non_trainable_variables) if built else None,
        "optimizer": _optimizer(optimizer),
        "dtype_policy": getattr(policy, "name", None),
        "steps_per_execution": getattr(model, "steps_per_execution", None),
        "jit_compile": getattr(model, "jit_compile", None),
    }


def _optimizer(optimizer: Any) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    return {"class": type(optimizer).__name__, **optimizer.get_config()}


def _count(variables: Any) -> int:
    return sum(math.prod(int(size) for size in variable.shape) for variable in variables)
