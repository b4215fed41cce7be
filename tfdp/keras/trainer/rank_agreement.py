"""The description, as JSON, of what must be alike on all ranks: a model and its arguments."""

import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.callbacks import Telemetry
from tfdp.callbacks.manifest.configuration import configuration
from tfdp.communication.replicas import sharding_of
from tfdp.keras._keras import flatten_layers
from tfdp.keras.trainer import epoch_iterators

_NUMBERED = re.compile(r"_\d+(?=/|$)")
_LONGEST = 300

# The keys under which a model's configuration names its layers, whose numbers differ by rank.
_NAMING = ("keras_history", "input_layers", "output_layers")
# The keys that say where a class is to be found, not what it does.
_ORIGIN = ("module", "registered_name", "build_config")


def of_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Describes the arguments of `fit`, `evaluate` or `predict`: plain values and arrays.

    An array is described by its size and its first and last example. Each rank takes its share of
    the whole data, so arrays that a rank has sharded for itself would be sharded twice. Such arrays
    have other ends on other ranks, even if their lengths are equal.
    """
    plain = (int, float, str, bool, type(None))
    described: dict[str, Any] = {
        f"argument {name}": value
        for name, value in arguments.items()
        if isinstance(value, plain) and name != "verbose"
    }
    if arguments.get("class_weight"):
        described["argument class_weight"] = str(sorted(arguments["class_weight"].items()))
    for name in ("x", "y", "sample_weight", "validation_data"):
        for ordinal, leaf in enumerate(_leaves(arguments.get(name))):
            # pandas, SciPy and TensorFlow's sparse tensors have a shape, but are no arrays.
            if getattr(leaf, "shape", None) is not None:
                described[f"array {ordinal} of argument {name}"] = _array(leaf)
    # Telemetry asks the other ranks after each epoch and waits for them, so all must have it.
    telemetry = [c for c in epoch_iterators.callbacks_in(arguments) if isinstance(c, Telemetry)]
    described["the `sample_every` of Telemetry"] = [c.sample_every for c in telemetry]
    return described


def of_model(model: Any) -> dict[str, Any]:
    """Describes a model, its layers, losses, metrics and optimizer, option by option."""
    options: dict[str, Any] = {
        "steps_per_execution": getattr(model, "steps_per_execution", None),
        "jit_compile": model.jit_compile,
        "run_eagerly": model.run_eagerly,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of functions that cannot be saved
        options |= dict(_compiled(model))
        options |= dict(_layers(model))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        for name, value in configuration(optimizer).items():
            options[f"optimizer {name}"] = _readable(value)
    return options


def of_variables(model: Any) -> dict[str, Any]:
    """Describes each variable of a model by its dtype, shape, first values and a checksum."""
    options = {}
    optimizer = getattr(model, "optimizer", None)
    parts = {"variable": model.variables, "slot": getattr(optimizer, "variables", [])}
    for part, variables in parts.items():
        for ordinal, variable in enumerate(variables):
            options[f"{part} {ordinal} ({_unnumbered(variable.path)})"] = _summary(variable)
    return options


def _leaves(data: Any) -> list[Any]:
    return [] if data is None else tf.nest.flatten(data)


def _array(leaf: Any) -> str:
    text = f"{getattr(leaf, 'dtype', 'of')} {list(leaf.shape)}"
    if not isinstance(leaf, (np.ndarray, tf.Tensor)) or not len(leaf.shape) or not leaf.shape[0]:
        return text
    ends = [np.ascontiguousarray(leaf[index]) for index in (0, -1)]
    bits = [repr(e.tolist()).encode() if e.dtype == object else e.tobytes() for e in ends]
    return f"{text}, first and last example {zlib.crc32(b''.join(bits)):08x}"


def _compiled(model: Any) -> Iterator[tuple[str, Any]]:
    for ordinal, loss in enumerate(_leaves(getattr(model, "loss", None))):
        yield f"loss {ordinal}", _readable(_loss(loss))
    try:
        config = model.get_compile_config()
    except Exception:  # Keras cannot describe everything that users give
        config = {}
    for name in ("loss_weights", "metrics", "weighted_metrics"):
        yield f"compile's {name}", _readable(_comparable(config.get(name), {}))


def _loss(loss: Any) -> Any:
    if not hasattr(loss, "get_config"):
        return loss
    # A function's arguments are not always in the configuration.
    arguments = {str(k): v for k, v in getattr(loss, "_fn_kwargs", {}).items()}
    config = configuration(loss) | arguments
    return {"class_name": type(loss).__name__} | _comparable(config, {})


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    layers = list(flatten_layers(model))
    names = {layer.name: f"layer {ordinal}" for ordinal, layer in enumerate(layers)}
    for ordinal, layer in enumerate(layers):
        for option, value in configuration(layer).items():
            if option == "layers":  # each layer is described by itself; here is how they are joined
                value = [entry.get("inbound_nodes") for entry in value]
            told = _comparable({option: value}, names)
            for kept, text in told.items():
                yield f"layer {ordinal} ({_unnumbered(layer.name)}) {kept}", _readable(text)


def _comparable(value: Any, names: dict[str, str]) -> Any:
    """Returns a part of a configuration without what may differ between ranks that do the same."""
    if isinstance(value, dict):
        if value.get("class_name") == "__lambda__":
            return "a lambda"  # its code holds the path of its file
        return {
            key: _renamed(item, names) if key in _NAMING else _comparable(item, names)
            for key, item in value.items()
            if key not in _ORIGIN
        }
    if isinstance(value, str):
        return _unnumbered(value)
    if isinstance(value, (list, tuple)):
        return [_comparable(item, names) for item in value]
    return value


def _renamed(value: Any, names: dict[str, str]) -> Any:
    return tf.nest.map_structure(lambda leaf: names.get(leaf, leaf), value)


def _unnumbered(name: str) -> str:
    return _NUMBERED.sub("", name)


def _summary(variable: Any) -> str:
    kind = f"{variable.dtype} {list(variable.shape)}"
    value = variable.value
    if sharding := sharding_of(value):
        return f"{kind}, sharded along axis {sharding.axis} at {sharding.bounds}"
    if value.synchronization == tf.VariableSynchronization.ON_READ:
        return kind
    value = np.ascontiguousarray(value.numpy())
    first = np.array2string(value.ravel()[:3], precision=6, separator=", ")
    return f"{kind} that begins with {first} (checksum {zlib.crc32(value.tobytes()):08x})"


def _readable(value: Any) -> Any:
    """Returns a short text of a value; of an object the class, as addresses differ by process."""
    plain = (int, float, str, bool, type(None), dict, list, tuple)
    if not isinstance(value, plain):
        return _name(value)
    text = re.sub(r" at 0x[0-9a-f]+", "", str(value))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... (checksum {zlib.crc32(text.encode()):08x})"


def _name(value: Any) -> str:
    named: Callable[..., Any] | type = value if callable(value) else type(value)
    return getattr(named, "__name__", type(value).__name__)
