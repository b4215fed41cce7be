"""The states of callbacks: of Keras' own that decide something, and of those that offer it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

# What these keep from one step or epoch to the next.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}


def get(callbacks: Sequence[Any]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Returns the states of those callbacks that have one, as JSON, and their arrays by name.

    A callback of the user's own has one if it has `get_state`, which returns JSON, and `set_state`.

    Raises:
      TypeError: `get_state` returned something else.

    >>> state, arrays = get([keras.callbacks.CSVLogger("log"), keras.callbacks.EarlyStopping()])
    >>> len(state), state[0]["attributes"]["wait"], arrays
    (1, 0, {})
    """
    states: list[Any] = []
    arrays: dict[str, np.ndarray] = {}
    for number, callback in enumerate(with_state(callbacks)):
        attributes: dict[str, Any] = {}
        for name in _names(callback):
            value = getattr(callback, name, None)
            if isinstance(value, list):
                attributes[name] = [f"callback-{number}-{name}-{i}" for i in range(len(value))]
                arrays |= dict(zip(attributes[name], map(np.array, value), strict=True))
            else:
                attributes[name] = value.item() if isinstance(value, np.generic) else value
        own = callback.get_state() if _offers(callback) else None
        _check_json(callback, own)
        states.append({"attributes": attributes, "own": own})
    return states, arrays


def set_(callbacks: Sequence[Any], states: Sequence[Any], arrays: Mapping[str, Any]) -> None:
    """Gives callbacks the states that `get` returned for callbacks like them."""
    for callback, state in zip(with_state(callbacks), states, strict=True):
        for name, value in state["attributes"].items():
            setattr(
                callback, name, [arrays[n] for n in value] if isinstance(value, list) else value
            )
        if _offers(callback):
            callback.set_state(state["own"])


def with_state(callbacks: Sequence[Any]) -> list[Any]:
    return [callback for callback in callbacks if _names(callback) or _offers(callback)]


def kinds(callbacks: Sequence[Any]) -> list[str]:
    """Returns the class names of the callbacks with a state: by these they are known again."""
    return [type(callback).__name__ for callback in with_state(callbacks)]


def _names(callback: Any) -> tuple[str, ...]:
    return next((names for kind, names in _ATTRIBUTES.items() if isinstance(callback, kind)), ())


def _offers(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _check_json(callback: Any, state: Any) -> None:
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`{type(callback).__name__}.get_state` must return what JSON can hold, for "
            f"Checkpoint, but returned {state!r}: {error}. Return numbers of Python, such as "
            "`float(value)` and `array.tolist()`."
        ) from error
