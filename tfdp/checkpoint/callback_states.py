"""The states of callbacks: of Keras' own that decide something, and of those that offer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

# What these keep from one epoch to the next.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "epochs_since_last_save"),
}


def get(callbacks: Sequence[Any]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Returns the states of callbacks as JSON, and their arrays by name.

    A callback of the user's own takes part if it has `get_state`, which returns JSON, and
    `set_state`.

    >>> state, arrays = get([keras.callbacks.EarlyStopping(), keras.callbacks.CSVLogger("log")])
    >>> state[0]["wait"], state[1], arrays
    (0, None, {})
    """
    states: list[Any] = []
    arrays: dict[str, np.ndarray] = {}
    for number, callback in enumerate(callbacks):
        names = _names(callback)
        if names:
            state: Any = {}
            for name in names:
                value = getattr(callback, name, None)
                if isinstance(value, list):
                    state[name] = [f"callback-{number}-{name}-{i}" for i in range(len(value))]
                    arrays |= dict(zip(state[name], map(np.array, value), strict=True))
                else:
                    state[name] = value.item() if isinstance(value, np.generic) else value
        else:
            state = callback.get_state() if _offers(callback) else None
        states.append(state)
    return states, arrays


def set_(callbacks: Sequence[Any], states: Sequence[Any], arrays: Mapping[str, Any]) -> None:
    """Gives callbacks the states that `get` returned for callbacks like them."""
    for callback, state in zip(callbacks, states, strict=True):
        names = _names(callback)
        for name in names:
            value = state[name]
            setattr(
                callback, name, [arrays[n] for n in value] if isinstance(value, list) else value
            )
        if not names and _offers(callback) and state is not None:
            callback.set_state(state)


def kinds(callbacks: Sequence[Any]) -> list[str]:
    """Returns the names of the callbacks' classes, by which a checkpoint knows them again."""
    return [type(callback).__name__ for callback in callbacks]


def _names(callback: Any) -> tuple[str, ...]:
    return next((names for kind, names in _ATTRIBUTES.items() if isinstance(callback, kind)), ())


def _offers(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))
