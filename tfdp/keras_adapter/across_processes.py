"""`fit`, `evaluate`, `predict` in a cluster: all ranks start alike, rank 0 shows progress."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp import collectives
from tfdp.callbacks import Telemetry
from tfdp.keras_adapter import feeding, fitting
from tfdp.keras_adapter._keras import TensorFlowTrainer
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.step import is_tfdp
from tfdp.manifest.configuration import configuration

_NUMBERED = re.compile(r"_\d+(?=/|$)")


def cluster_of(strategy: Any) -> Any:
    """The strategy's processes, or None where it has one."""
    if is_tfdp(strategy) and strategy.extended.in_cluster:
        return strategy.extended.processes
    return None


def explained(strategy: Any) -> contextlib.AbstractContextManager[None]:
    """Raises what went wrong in the cluster in place of what TensorFlow says of it."""
    processes = cluster_of(strategy)
    return contextlib.nullcontext() if processes is None else processes.explained()


@hook(TensorFlowTrainer, "fit")
def fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """All ranks start alike; the progress bar is rank 0's."""
    return _run("fit", original, self, args, kwargs)


@hook(TensorFlowTrainer, "evaluate")
def evaluate(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """As `fit`."""
    return _run("evaluate", original, self, args, kwargs)


@hook(TensorFlowTrainer, "predict")
def predict(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """As `fit`."""
    return _run("predict", original, self, args, kwargs)


def _run(name: str, original: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    feeding.arrange(name, bound.arguments)
    with feeding.explained(bound.arguments), feeding.during(name, model):
        return _run_arranged(name, original, model, bound)


def _run_arranged(
    name: str, original: Callable[..., Any], model: Any, bound: inspect.BoundArguments
) -> Any:
    processes = cluster_of(model.distribute_strategy)
    if not is_tfdp(model.distribute_strategy):
        if collectives.joined() and name == "fit":
            logging.getLogger("tfdp").warning(
                "%r was built outside the strategy's scope: each rank trains it alone, with all "
                "of the data. Build and compile it in `with strategy.scope():`.",
                model.name,
            )
        return original(*bound.args, **bound.kwargs)
    if name == "fit":
        fitting.prepare(model, bound.arguments)
    if processes is None:
        return original(*bound.args, **bound.kwargs)
    # Within `fit`, validation calls `evaluate` with what `fit` was given.
    if not bound.arguments.get("kwargs", {}).get("_use_cached_eval_dataset"):
        seed = {"the seed of `keras.utils.set_random_seed`": collectives.global_seed()}
        processes.compare(f"`{name}`", _arguments(bound.arguments) | seed | described(model))
        processes.adopt_random_states()
    if processes.rank != 0:
        bound.arguments["verbose"] = 0
    with explained(model.distribute_strategy):
        return original(*bound.args, **bound.kwargs)


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are numbers, texts and the like."""
    plain = (int, float, str, bool, type(None))
    described: dict[str, Any] = {
        f"argument {name}": value
        for name, value in arguments.items()
        if isinstance(value, plain) and name != "verbose"
    }
    # It asks the other ranks after each epoch, and waits for them.
    telemetry = [c for c in feeding.callbacks_in(arguments) if isinstance(c, Telemetry)]
    described["the `sample_every` of Telemetry"] = [c.sample_every for c in telemetry]
    return described


def described(model: Any) -> dict[str, Any]:
    """What must be alike on all ranks of a model and its optimizer, option by option; JSON.

    Variables are there with their shape, dtype, a checksum and their first values.
    """
    options: dict[str, Any] = {
        "steps_per_execution": getattr(model, "steps_per_execution", None),
        "jit_compile": model.jit_compile,
        "run_eagerly": model.run_eagerly,
        "loss": _readable(getattr(model, "loss", None)),
    }
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        for name, value in configuration(optimizer).items():
            options[f"optimizer {name}"] = _readable(value)
    parts = {"variable": model.variables, "slot": getattr(optimizer, "variables", [])}
    for part, variables in parts.items():
        for ordinal, variable in enumerate(variables):
            name = _NUMBERED.sub("", variable.path)
            options[f"{part} {ordinal} ({name})"] = _summary(variable)
    return json.loads(json.dumps(options))


def _summary(variable: Any) -> str:
    kind = f"{variable.dtype} {list(variable.shape)}"
    if variable.value.synchronization == tf.VariableSynchronization.ON_READ:
        return kind
    value = np.ascontiguousarray(variable.value.numpy())
    first = np.array2string(value.ravel()[:3], precision=6, separator=", ")
    return f"{kind} that begins with {first} (checksum {zlib.crc32(value.tobytes()):08x})"


def _readable(value: Any) -> Any:
    text = str(value) if isinstance(value, (int, float, str, bool, type(None), dict)) else None
    # An object's address differs between processes.
    return type(value).__name__ if text is None else re.sub(r" at 0x[0-9a-f]+", "", text)
