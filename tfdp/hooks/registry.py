"""The registry of everything that tfdp puts in the place of a function of somebody else."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tfdp.errors import HookError
from tfdp.hooks import private, versions

_NOTHING = object()  # an object's attribute that its class holds


@dataclasses.dataclass(frozen=True, eq=False)
class Hook:
    """One function that tfdp has put in the place of another.

    Attributes:
      owner: The class, module or object that holds it.
      name: Its name there.
      original: What the owner held before, the very object.
      wrapper: Called as `wrapper(original, *args, **kwargs)`.
    """

    owner: Any
    name: str
    original: Any
    wrapper: Callable[..., Any]

    @property
    def reason(self) -> str:
        """Says what the hook is for."""
        return (inspect.getdoc(self.wrapper) or "").partition("\n\n")[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Registration:
    """A function of a class or module that `install` wraps, also where subclasses override it."""

    owner: Any
    name: str
    wrapper: Callable[..., Any]
    overrides: bool


REGISTERED: list[Registration] = []

_lock = threading.RLock()
_users: weakref.WeakSet[Any] = weakref.WeakSet()
_num_installed = 0  # the first so many registrations are in place
# The functions in place, the latest last. Weak: a class or object may go with what wraps it.
_in_place: list[weakref.ref[Any]] = []


def hook(
    owner: Any, name: str, *, overrides: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function to be called in the place of `owner.name`.

    It receives the wrapped function first; its docstring says what the hook is for. Nothing changes
    before `install`. Of several hooks of one function the last registered is the outermost.

    Args:
      owner: The class or module that holds the function.
      name: Its name there.
      overrides: Wraps as well whatever overrides it: in all subclasses that there are, and in
        those for which `cover` is called.
    """

    def register(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        REGISTERED.append(Registration(owner, name, wrapper, overrides))
        return wrapper

    return register


def install(user: Any = None) -> None:
    """Puts all registered hooks in place. Those that are there already stay.

    The first call reads the source of each wrapped function (0.1 s), later ones cost nothing.

    Args:
      user: As long as this object lives, `remove` is refused.

    Raises:
      HookError: A function that is to be wrapped is not where it was; nothing was changed.
    """
    global _num_installed
    with _lock:
        if user is not None:
            _users.add(user)
        new = REGISTERED[_num_installed:]
        if new:
            versions.check(relied_on())
        for entry in new:
            put(entry.owner, entry.name, entry.wrapper)
            if entry.overrides:
                for cls in _subclasses(entry.owner):
                    _cover(cls, entry)
        _num_installed = len(REGISTERED)


def relied_on() -> list[tuple[Any, str]]:
    """Lists owner and name of what is wrapped, and of what is called although it is private."""
    return [(entry.owner, entry.name) for entry in REGISTERED] + private.METHODS


def cover(cls: type) -> None:
    """Wraps what a class, made after `install`, or a base of it overrides."""
    with _lock:
        for entry in REGISTERED[:_num_installed]:
            if entry.overrides and issubclass(cls, entry.owner):
                _cover(cls, entry)


def put(owner: Any, name: str, wrapper: Callable[..., Any]) -> Any:
    """Calls `wrapper` in the place of `owner.name` from now on, unless it is there already.

    Args:
      owner: A class, a module, or an object whose method shall be another than its class'.
      name: Its name there.
      wrapper: Receives the function first; its docstring says what the hook is for.

    Returns:
      The function that is there now; None where `wrapper` was there already.
    """
    held = _held(owner, name)
    member = getattr(owner, name) if held is _NOTHING else held
    original = function(member)
    there = getattr(original, "tfdp_hook", None)
    if there is not None and there.wrapper == wrapper:
        return None

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    wrapped.tfdp_hook = Hook(owner, name, held, wrapper)  # type: ignore[attr-defined]
    with _lock:
        _in_place[:] = [ref for ref in _in_place if ref() is not None]
        _in_place.append(weakref.ref(wrapped))
        _set(owner, name, property(wrapped) if isinstance(member, property) else wrapped)
    return wrapped


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Calls `wrapper` in the place of `owner.name` within the context: see `put`."""
    wrapped = put(owner, name, wrapper)
    try:
        yield
    finally:
        if wrapped is not None:
            _take_back([wrapped])


def installed() -> list[Hook]:
    """Lists what tfdp has put in the place of others' functions, the latest last.

    >>> import tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> hook = next(hook for hook in installed() if hook.name == "get_metrics_result")
    >>> hook.owner.__name__, hook.reason
    ('Trainer', "All metrics' results, from one all-reduce of all their variables.")
    """
    return [wrapped.tfdp_hook for wrapped in _alive()]


def remove() -> None:
    """Gives Keras, TensorFlow and Python back every function as it was.

    It is for a process that has trained under a strategy and goes on without one. The next strategy
    puts the hooks in place again.

    Raises:
      HookError: A strategy is alive, or a function was wrapped once more by somebody else. Nothing
        was changed then.

    >>> import keras, tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0"])
    >>> remove()
    Traceback (most recent call last):
        ...
    tfdp.errors.HookError: Hooks can be taken back when no strategy is alive, but
    DataParallelStrategy(1 replicas on CPU:0) is. ...
    """
    global _num_installed
    with _lock:
        # What only refers to itself is not alive. Finalizers keep things for another pass.
        for _ in range(5):
            gc.collect()
            if not _users:
                break
        if _users:
            raise HookError(
                "Hooks can be taken back when no strategy is alive, but "
                f"{', '.join(map(repr, _users))} is. Drop every reference to it, those of models, "
                "optimizers and distributed datasets too: `del strategy, model`."
            )
        _take_back(_alive()[::-1])
        _num_installed = 0


def function(member: Any) -> Any:
    """Returns a member of a class or module itself; of a property the function that reads it."""
    return member.fget if isinstance(member, property) else member


def _alive() -> list[Any]:
    return [wrapped for ref in _in_place if (wrapped := ref()) is not None]


def _take_back(latest_first: list[Any]) -> None:
    """Puts the originals back: all, or none and an error."""
    held: dict[tuple[int, str], Any] = {}
    for wrapped in latest_first:
        entry = wrapped.tfdp_hook
        key = (id(entry.owner), entry.name)
        if function(held.get(key, _held(entry.owner, entry.name))) is not wrapped:
            raise HookError(
                f"{versions.title(entry.owner, entry.name)} must hold what tfdp put there to be "
                "taken back, but something else has taken its place since. Undo that first."
            )
        held[key] = entry.original
    taken = {id(wrapped) for wrapped in latest_first}
    _in_place[:] = [ref for ref in _in_place if id(ref()) not in taken]
    for wrapped in latest_first:
        _set(wrapped.tfdp_hook.owner, wrapped.tfdp_hook.name, wrapped.tfdp_hook.original)


def _held(owner: Any, name: str) -> Any:
    """What the owner itself holds, and not its class."""
    if hasattr(owner, "__dict__"):
        return vars(owner).get(name, _NOTHING)
    # A graph of TensorFlow keeps its attributes elsewhere.
    member = getattr(owner, name)
    there = getattr(member, "tfdp_hook", None)
    return member if there is not None and there.owner is owner else _NOTHING


def _set(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, "__dict__") and value is _NOTHING:
        delattr(owner, name)
    elif isinstance(owner, type) or not hasattr(owner, "__dict__"):
        setattr(owner, name, value)
    elif value is _NOTHING:
        del vars(owner)[name]
    else:
        vars(owner)[name] = value  # past what Keras does with attributes: it is no state


def _cover(cls: type, entry: Registration) -> None:
    for base in cls.__mro__:
        if entry.name in vars(base):
            put(base, entry.name, entry.wrapper)


def _subclasses(cls: type[Any]) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
