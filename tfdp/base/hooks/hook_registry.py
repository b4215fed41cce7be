"""The registry of all functions that tfdp puts in the place of functions of other packages."""

import contextlib
import dataclasses
import functools
import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tfdp.base import tracebacks
from tfdp.base.hooks import private_names, versions
from tfdp.errors import HookError

_NOTHING = object()  # stands for the absence of a name in an object whose class holds it


@dataclasses.dataclass(frozen=True, eq=False)
class Hook:
    """One function that tfdp has put in the place of another.

    Attributes:
      owner: The class, module or object that holds the function.
      name: The function's name in the owner.
      original: The very object that the owner held before.
      wrapper: The function that runs in its place, as `wrapper(original, *args, **kwargs)`.
    """

    owner: Any
    name: str
    original: Any
    wrapper: Callable[..., Any]

    @property
    def reason(self) -> str:
        """The first paragraph of the wrapper's docstring, which says what the hook is for."""
        return (inspect.getdoc(self.wrapper) or "").partition("\n\n")[0]


@dataclasses.dataclass(eq=False)
class Registration:
    """A function of a class or module that `install` wraps; see `hook` for the first attributes.

    Attributes:
      is_installed: Whether `install` has wrapped it, and `remove` has not taken that back.
    """

    owner: Any
    name: str
    wrapper: Callable[..., Any]
    overrides: bool
    is_installed: bool = False


# Keras and TensorFlow hold one function under a name in the whole process. So do these: what is to
# be put there, and the strategies that need it.
REGISTERED: list[Registration] = []
_users: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.RLock()
# The wrapping functions that are in place, the latest last. The references are weak, so that a
# class or an object can be freed together with the function that it holds.
_in_place: list[weakref.ref[Any]] = []


def hook(
    owner: Any, name: str, *, overrides: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function to be called in the place of `owner.name`.

    The decorated function receives the wrapped one as its first argument. Its docstring says what
    the hook is for. Nothing changes before `install`. Of several hooks of one function the last
    registered is the outermost.

    Args:
      owner: The class or module that holds the function.
      name: The function's name in the owner.
      overrides: Whether methods that override the function are wrapped as well: those of all
        subclasses that exist at `install`, and of the classes that `cover` is called with.

    Returns:
      A decorator, which returns the decorated function itself.
    """

    def register(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        REGISTERED.append(Registration(owner, name, wrapper, overrides))
        return wrapper

    return register


def install(user: Any = None) -> None:
    """Puts all registered hooks in place that are not there already.

    The first call reads the source of each wrapped function (0.1 s); later calls cost nothing.

    Args:
      user: An object, such as a strategy. `remove` is refused as long as it lives.

    Raises:
      HookError: A function to be wrapped does not exist under its name. Nothing was changed then.
    """
    with _lock:
        if user is not None:
            _users.add(user)
        new = [entry for entry in REGISTERED if not entry.is_installed]
        if new:
            versions.check(relied_on())
        for entry in new:
            put(entry.owner, entry.name, entry.wrapper)
            if entry.overrides:
                for cls in _subclasses(entry.owner):
                    _cover(cls, entry)
            entry.is_installed = True


def relied_on() -> list[tuple[Any, str]]:
    """Lists the owner and name of each registered function and each declared private method."""
    return [(entry.owner, entry.name) for entry in REGISTERED] + private_names.METHODS


def users() -> list[Any]:
    """Lists the objects, such as strategies, that `install` was called for and that are alive."""
    return list(_users)


def cover(cls: type) -> None:
    """Wraps the overriding methods of a class that was made after `install`, and of its bases."""
    with _lock:
        for entry in REGISTERED:
            if entry.is_installed and entry.overrides and issubclass(cls, entry.owner):
                _cover(cls, entry)


def put(owner: Any, name: str, wrapper: Callable[..., Any]) -> Any:
    """Puts `wrapper` in the place of `owner.name`, unless it is there already.

    Args:
      owner: A class, a module, or an object whose method is to differ from that of its class.
      name: The name of the function or method.
      wrapper: Receives the original function as its first argument. Its docstring says what the
        hook is for.

    Returns:
      The function that the owner holds now; None where `wrapper` was there already.
    """
    held = _held(owner, name)
    member = getattr(owner, name) if held is _NOTHING else held
    original = function(member)
    if _is_within(wrapper, original):
        return None

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return wrapper(original, *args, **kwargs)
        except Exception as error:
            tracebacks.leave_out_own_frames(error)
            raise

    wrapped.tfdp_hook = Hook(owner, name, held, wrapper)  # type: ignore[attr-defined]
    with _lock:
        _in_place[:] = [ref for ref in _in_place if ref() is not None]
        _in_place.append(weakref.ref(wrapped))
        _set(owner, name, property(wrapped) if isinstance(member, property) else wrapped)
    return wrapped


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Puts `wrapper` in the place of `owner.name`, as `put` does, within the context only."""
    wrapped = put(owner, name, wrapper)
    try:
        yield
    finally:
        if wrapped is not None:
            _take_back([wrapped])


def installed() -> list[Hook]:
    """Lists the hooks that are in place, the latest last.

    >>> import tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> hook = next(hook for hook in installed() if hook.name == "get_tf_dataset")
    >>> hook.owner.__name__, hook.reason[:54]
    ('ArrayDataAdapter', 'Gives the dataset of arrays its number of batches; pro')
    """
    return [wrapped.tfdp_hook for wrapped in _alive()]


def remove() -> None:
    """Takes all hooks back: Keras, TensorFlow and Python hold their original functions again.

    A process that has trained under a strategy and goes on without one may call this. The next
    strategy puts the hooks in place again.

    Raises:
      HookError: A strategy is alive, or another package has replaced a hooked function since.
        Nothing was changed then.

    >>> import keras, tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0"])
    >>> remove()
    Traceback (most recent call last):
        ...
    tfdp.errors.HookError: Hooks can be taken back when no strategy is alive, but ...
    """
    with _lock:
        # Strategies that only garbage refers to must not count as alive. A finalizer may keep an
        # object until a later pass of the collector, so there are passes until one finds nothing.
        for _ in range(5):
            if not gc.collect() or not _users:
                break
        if _users:
            raise HookError(
                "Hooks can be taken back when no strategy is alive, but "
                f"{', '.join(map(repr, _users))} is. Drop every reference to it, those of models, "
                "optimizers and distributed datasets too: `del strategy, model`."
            )
        _take_back(_alive()[::-1])
        for entry in REGISTERED:
            entry.is_installed = False


def function(member: Any) -> Any:
    """Returns the function behind a member: a property's getter, or else the member itself."""
    return member.fget if isinstance(member, property) else member


def _is_within(wrapper: Callable[..., Any], wrapped: Any) -> bool:
    """Returns whether a function is `wrapper`'s, or one that another hook has wrapped since."""
    while (there := getattr(wrapped, "tfdp_hook", None)) is not None:
        if there.wrapper == wrapper:
            return True
        wrapped = function(there.original)
    return False


def _alive() -> list[Any]:
    return [wrapped for ref in _in_place if (wrapped := ref()) is not None]


def _take_back(latest_first: list[Any]) -> None:
    """Puts the originals back; raises HookError, and puts back none, if one place was taken."""
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
    """Returns what the owner itself holds, and not its class."""
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
        vars(owner)[name] = value  # `setattr` would make Keras track the function as state


def _cover(cls: type, entry: Registration) -> None:
    for base in cls.__mro__:
        if entry.name in vars(base):
            put(base, entry.name, entry.wrapper)


def _subclasses(cls: type[Any]) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
