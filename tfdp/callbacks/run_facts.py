"""The facts that `Telemetry` writes when a training begins: model, devices, host, earlier steps."""

import math
import socket
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import compiler_of


def described(model: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Describes what is trained, where, and for how long.

    Args:
      model: A compiled Keras model.
      params: The parameters that Keras gives to callbacks.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> facts = described(model, {"epochs": 3, "steps": 10})
    >>> facts["optimizer"], facts["parameters"], facts["epochs"]
    ('SGD', 5, 3)
    """
    strategy, optimizer = model.distribute_strategy, _innermost(model.optimizer)
    compiler = compiler_of(strategy)
    replicas = int(strategy.num_replicas_in_sync)
    devices = [name.split("device:")[-1] for name in _devices(strategy)]
    local_replicas = len(devices)
    if compiler is not None:  # whose devices TensorFlow does not know
        devices = [str(compiler.order_of_sums()["devices"])]
        local_replicas = replicas // compiler.processes.world_size
    return {
        "host": host_name(),
        "strategy": type(strategy).__name__,
        "topology": repr(getattr(strategy, "topology", None)),
        "replicas": replicas,
        "local_replicas": local_replicas,
        "devices": devices,
        "steps_per_execution": model.steps_per_execution,
        "jit_compile": bool(model.jit_compile),
        "optimizer": None if optimizer is None else type(optimizer).__name__,
        "gradient_accumulation_steps": _accumulation(optimizer),
        "parameters": sum(math.prod(v.shape) for v in model.trainable_variables),
        "epochs": params.get("epochs"),
        "steps_per_epoch": params.get("steps"),
    }


def steps_before(optimizer: Any) -> int:
    """Returns the steps of earlier trainings: whole windows of accumulation, not skipped."""
    inner = _innermost(optimizer)
    return 0 if inner is None else int(inner.iterations.numpy()) * _accumulation(inner)


def host_name() -> str:
    """Returns the name of this machine."""
    return socket.gethostname()


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _accumulation(optimizer: Any) -> int:
    return int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)


def _devices(strategy: Any) -> list[str]:
    try:
        return list(strategy.extended.worker_devices)
    except RuntimeError:  # TensorFlow's default strategy names none
        gpus = tf.config.list_logical_devices("GPU")
        return [gpus[0].name if gpus else "device:CPU:0"]
