"""How a function of Keras or TensorFlow is wrapped, and the list of those that are."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

_MODULES = (
    "across_processes",
    "backups",
    "compiling",
    "feeding",
    "files",
    "gradients",
    "h5_files",
    "images",
    "layers",
    "losses",
    "metrics",
    "moments",
    "optimizers",
    "randomness",
    "recurrent",
    "saving",
    "scopes",
    "stand_ins",
    "statistics",
    "trainer",
    "variables",
    "whole_values",
)


@dataclasses.dataclass(frozen=True)
class Hook:
    """A function of Keras or TensorFlow and what stands in its place.

    Attributes:
      owner: The class or module that holds it.
      name: Its name there.
      original: The function as it was when the hook was registered.
      wrapper: Called as `wrapper(original, *args, **kwargs)`.
    """

    owner: Any
    name: str
    original: Callable[..., Any]
    wrapper: Callable[..., Any]


HOOKS: list[Hook] = []


def hook(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function to be called in place of `owner.name`.

    It receives the wrapped function first. Nothing changes before `install`. Of several hooks of
    one function the last registered is the outermost.
    """

    def register(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        HOOKS.append(Hook(owner, name, function(vars(owner)[name]), wrapper))
        return wrapper

    return register


def function(member: Any) -> Any:
    """A member of a class or module itself; of a property the function that reads it."""
    return member.fget if isinstance(member, property) else member


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Puts `wrapper` in the place of `owner.name`."""
    member = vars(owner)[name]
    original = function(member)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    wrapped.is_tfdp_hook = True  # type: ignore[attr-defined]
    setattr(owner, name, property(wrapped) if isinstance(member, property) else wrapped)


@functools.cache
def install() -> None:
    """Puts all hooks in place, once in the process."""
    for module in _MODULES:
        importlib.import_module(f"tfdp.keras_adapter.{module}")
    for entry in HOOKS:
        wrap(entry.owner, entry.name, entry.wrapper)
