"""The configuration of an optimizer or a schedule, also where `get_config` fails."""

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tfdp.callbacks.manifest.strict_json import attempted

# Keras' own optimizers nest three deep: a loss scale, an optimizer, a schedule.
_DEEPEST = 8
# The most numbers of an array that are written; a larger array is told by its shape.
_MOST_NUMBERS = 1000


def configuration(thing: Any) -> dict[str, Any]:
    """Returns `get_config()`; where that raises, the attributes named as constructor's arguments.

    Many programs write a `LearningRateSchedule` without `get_config`, and then `get_config` of an
    optimizer that has it fails, too.

    Args:
      thing: An optimizer, a schedule, or another object of Keras.

    Returns:
      The configuration. If it is made of attributes, `incomplete` says so, and objects are told by
      their `class_name` and `config`, or by their class alone. Alike on all ranks of a cluster.

    >>> class Decay:
    ...     def __init__(self, rate):
    ...         self.rate = rate
    ...     def get_config(self):
    ...         raise NotImplementedError
    >>> configuration(Decay(0.5))
    {'rate': 0.5, 'incomplete': '`get_config` raised NotImplementedError'}
    """
    return _configuration(thing, 0)


def _configuration(thing: Any, depth: int) -> dict[str, Any]:
    try:
        return dict(thing.get_config())
    except Exception as error:
        found = {name: attempted(_told, value, depth) for name, value in _arguments(thing)}
        # The message may differ between the ranks, which compare their configurations.
        return {**found, "incomplete": f"`get_config` raised {type(error).__name__}"}


def _arguments(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields the constructor's arguments that were kept, a base class's before its subclass's."""
    names: dict[str, None] = {}
    for kind in reversed(type(thing).__mro__):
        names |= dict.fromkeys(_parameters(kind))
    held = getattr(thing, "__dict__", {})
    if "inner_optimizer" in held:  # the rate is the inner optimizer's; the wrapper's is never used
        names.pop("learning_rate", None)
    for name in names:
        # `learning_rate` computes a number; `_learning_rate` is the schedule.
        attribute = next((key for key in (name, f"_{name}") if key in held), name)
        try:
            value = getattr(thing, attribute)
        except Exception:  # the argument was not kept, or reading it fails
            continue
        if attribute in held or not callable(value):
            yield name, value


def _parameters(kind: type) -> list[str]:
    if "__init__" not in vars(kind):
        return []
    try:
        _, *parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    except (TypeError, ValueError):  # of a class in C
        return []
    various = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [parameter.name for parameter in parameters if parameter.kind not in various]


def _told(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth >= _DEEPEST:
        return type(value).__name__
    if isinstance(value, Mapping):
        return {str(key): attempted(_told, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [attempted(_told, item, depth + 1) for item in value]
    if hasattr(value, "numpy"):  # a variable or a tensor
        value = value.numpy()
    if hasattr(value, "tolist"):  # of NumPy
        shape = list(value.shape)
        return value.tolist() if math.prod(shape) <= _MOST_NUMBERS else f"{value.dtype} {shape}"
    name = type(value).__name__
    if hasattr(value, "get_config"):
        return {"class_name": name, "config": _configuration(value, depth + 1)}
    return getattr(value, "__qualname__", name)
