"""Logs of steps that are compiled whole: numbers that come from the devices when they are read.

A step is started and not waited for. Keras makes numbers of each batch's logs as soon as there are
some, in a thread of its own if no callback is called with them: it waits for each step, and takes
turns with the thread that starts the next. Here a callback that reads a batch's logs waits for that
batch, the progress bar does whenever it shows something, and who reads nothing waits for nothing.
"""

import time
from collections.abc import Callable
from typing import Any

import keras

from tfdp.base.hooks import hook
from tfdp.communication.replicas import compiler_of
from tfdp.keras._keras import last_update_of_bar, pythonify_logs


class LateLogs(dict[str, Any]):
    """The logs of a batch, which become numbers, all together, when one of them is read.

    C code that looks past a dictionary's methods, as `tf.nest` does, finds JAX's arrays of numbers.

    Args:
      logs: What the step has returned, by name.

    >>> import jax
    >>> logs = LateLogs({"loss": jax.numpy.ones([]) / 2})
    >>> "loss" in logs, len(logs), logs
    (True, 1, {'loss': 0.5})
    """

    _unread: dict[str, Any] | None = None  # in a copy, too

    def __init__(self, logs: dict[str, Any]) -> None:
        super().__init__(sorted(logs.items()))
        self._unread = logs

    def read(self) -> None:
        """Makes numbers of the logs, if they are none yet."""
        if self._unread is not None:
            numbers, self._unread = pythonify_logs(self._unread), None
            dict.update(self, numbers)


def _reading(name: str) -> Callable[..., Any]:
    """Returns a method of dictionaries that reads the logs first."""
    method = getattr(dict, name)

    def read_first(self: LateLogs, *args: Any, **kwargs: Any) -> Any:
        self.read()
        return method(self, *args, **kwargs)

    return read_first


# All that gives a value or depends on one. `dict(logs)` asks for values since `__iter__` is here.
for _name in (
    *("__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__ne__", "__or__"),
    *("__repr__", "__reversed__", "__ror__", "__setitem__", "clear", "copy", "get", "items"),
    *("pop", "popitem", "setdefault", "update", "values"),
):
    setattr(LateLogs, _name, _reading(_name))


@hook(keras.callbacks.CallbackList, "on_train_batch_end")
def on_train_batch_end(
    original: Callable[..., Any], self: Any, batch: int, logs: dict[str, Any] | None = None
) -> Any:
    """Calls the callbacks with late logs, where the step was compiled whole."""
    return _call(original, self, "on_train_batch_end", batch, logs)


@hook(keras.callbacks.CallbackList, "on_test_batch_end")
def on_test_batch_end(
    original: Callable[..., Any], self: Any, batch: int, logs: dict[str, Any] | None = None
) -> Any:
    """Calls the callbacks with late logs, where the step was compiled whole."""
    return _call(original, self, "on_test_batch_end", batch, logs)


@hook(keras.callbacks.ProgbarLogger, "_update_progbar")
def update_progbar(
    original: Callable[..., Any], self: Any, batch: int, logs: dict[str, Any] | None = None
) -> Any:
    """Leaves late logs alone between two times at which the bar shows them."""
    bar = self.progbar
    is_late = bar is not None and isinstance(logs, LateLogs)
    if is_late and time.time() - last_update_of_bar(bar) < bar.interval:
        self.seen = batch + 1
        return None
    return original(self, batch, logs)


def _call(original: Callable[..., Any], callbacks: Any, name: str, batch: int, logs: Any) -> Any:
    strategy = getattr(callbacks.model, "distribute_strategy", None)
    is_flat = isinstance(logs, dict) and not any(isinstance(each, dict) for each in logs.values())
    if not is_flat or compiler_of(strategy) is None:
        return original(callbacks, batch, logs)
    late = LateLogs(logs)
    for callback in callbacks.callbacks:
        getattr(callback, name)(batch, logs=late)
    return None
