"""`strategy.run`: the step of a loop of one's own, which all devices run as one program."""

import dis
import functools
import logging
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdp.strategy.xla import graph_runs
from tfdp.strategy.xla.compiled import Compiled

# So many functions keep their programs, those that ran last: each holds what its function does.
_KEPT = 32

_NUMBERS = (bool, int, float, complex, str, bytes, type(None))


class Runs:
    """The functions that a strategy was asked to run, each with its programs.

    Python makes a method anew wherever it is asked for, and a lambda in a loop in each iteration. A
    function is known again by its code, and by what it refers to: the variables of its module and
    of the function around it, its defaults, and the object whose method it is. Where another of
    these is referred to, it is another function, which is compiled once more, and a warning names
    what differs.

    Args:
      strategy: The strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._programs: OrderedDict[Any, tuple[Compiled, dict[str, Any]]] = OrderedDict()

    def __call__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a function on whole batches, and returns what it does; in a graph, too.

        Raises:
          ValueError: `args` is no tuple or list, or `kwargs` no dict.
        """
        if not isinstance(args, (tuple, list)) or not isinstance(kwargs or {}, Mapping):
            raise ValueError(
                "`strategy.run` must be given a tuple of arguments and a dict of those by name, "
                f"but received args={args!r}, kwargs={kwargs!r}. Use args=(batch,)."
            )
        args, kwargs = tuple(args), dict(kwargs or {})
        while isinstance(function, functools.partial):
            args, kwargs = (*function.args, *args), function.keywords | kwargs
            function = function.func
        if not tf.executing_eagerly():
            return graph_runs.called(self._strategy, function, args, kwargs)
        return self._program(function)(*args, **kwargs)

    def _program(self, function: Callable[..., Any]) -> Compiled:
        referents = _referents(function)
        key = tuple(map(_key, referents.values()))
        if key not in self._programs:
            for _, former in reversed(self._programs.values()):
                if _are_alike(former, referents):
                    _warn_of_another(former, referents)
                    break
            self._programs[key] = Compiled(self._strategy, function), referents
            if len(self._programs) > _KEPT:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return self._programs[key][0]


def _referents(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns what tells a function from others, by name.

    >>> def scaled(factor):
    ...     return lambda x, power=2: factor * x**power
    >>> _referents(scaled(3))["factor"], _referents(scaled(3))["its defaults"]
    (3, (2,))
    """
    inner = getattr(function, "python_function", function)  # of a `tf.function`
    inner = getattr(inner, "__func__", inner)
    if not isinstance(inner, types.FunctionType):
        return {"object": function}
    found = {
        "code": inner.__code__,
        "name": inner.__qualname__,
        "its kind": type(function),
        "its module": inner.__globals__,
        "self": getattr(function, "__self__", None),
        "its defaults": (*(inner.__defaults__ or ()), *(inner.__kwdefaults__ or {}).values()),
    }
    of_module = inner.__globals__
    found |= {name: of_module[name] for name in _names(inner.__code__) if name in of_module}
    for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it is defined later
            found[name] = None
    return found


@functools.lru_cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Returns what code, and functions within it, look up in their module and do not rebind."""
    read, bound = set(), set()
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(each.argval)
        elif each.opname == "STORE_GLOBAL":
            bound.add(each.argval)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            read |= {*_names(each)}
    return tuple(sorted(read - bound))


def _are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two functions are made by the same lines."""
    return "code" in one and all(one[name] == other.get(name) for name in ("code", "name"))


def _key(value: Any) -> Any:
    """Returns what is equal for the same object, and for equal numbers and tuples of such."""
    if isinstance(value, _NUMBERS):
        return type(value), value
    if type(value) is tuple:
        return tuple(map(_key, value))
    return id(value)


def _warn_of_another(former: Mapping[str, Any], referents: Mapping[str, Any]) -> None:
    other = [name for name, each in referents.items() if _key(each) != _key(former.get(name))]
    logging.getLogger("tfdp").warning(
        "%s is compiled once more, for it refers to another object by the name of %s, and so in "
        "each iteration that makes one. Give `strategy.run` what changes in `args`, as a tensor.",
        referents["name"].rpartition(".")[2],
        " and ".join(other),
    )
