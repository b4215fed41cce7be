"""Copies of an optimizer that update small variables, for the proof of `elementwise`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.keras_adapter._keras import BaseOptimizer, backend_update_step

RATE = 0.01

#: The elements of a small variable along the axis that is cut, and at most along others.
SIZES = _SIZE, _OTHER_SIZE = 6, 4
_LARGEST = 256

#: The number of updates before, the scale of gradients, and how many steps follow.
PHASES = ((0, 1.0, 3), (10**6, 1e-4, 2), (10**6 + 2, 1e4, 2))


class NotProven(Exception):
    """The reason why an optimizer's variables cannot be updated apart from each other."""


@dataclasses.dataclass(frozen=True)
class Like:
    """A variable that a small one stands for in the proof.

    Attributes:
      path: The path, by which an optimizer may treat a variable in another way.
      shape: The shape.
      axis: The axis along which it is to be cut; None if it stays whole.
    """

    path: str
    shape: tuple[int, ...]
    axis: int | None

    def small(self) -> Like:
        """Returns it with few elements.

        >>> Like("dense/kernel", (512, 1), axis=0).small().shape
        (6, 1)
        """
        sizes = [
            _SIZE if axis == self.axis else min(size, _OTHER_SIZE)
            for axis, size in enumerate(self.shape)
        ]
        return dataclasses.replace(self, shape=tuple(sizes))

    def large(self) -> Like:
        """Returns it with two axes of up to 256, and the others of one element."""
        order = sorted(range(len(self.shape)), key=lambda k: (k != self.axis, -self.shape[k]))
        sizes = [1] * len(self.shape)
        for axis in order[:2]:
            sizes[axis] = min(self.shape[axis], _LARGEST)
        return dataclasses.replace(self, shape=tuple(sizes))


@dataclasses.dataclass
class Trained:
    """What a copy has come to.

    Attributes:
      moved: By variable, what it moved by in each of the `PHASES`.
      slots: By variable, what is kept for it.
      shared: What is kept for all together.
    """

    moved: list[list[np.ndarray]]
    slots: list[list[np.ndarray]]
    shared: list[np.ndarray]


class Copies:
    """Copies of an optimizer, which update the same variables by the same gradients.

    Args:
      kind: The optimizer's class.
      config: Its configuration.
      variables: The variables.
      dtype: Their dtype.
    """

    def __init__(
        self, kind: type, config: dict[str, Any], variables: Sequence[Like], dtype: str
    ) -> None:
        self._kind, self._config = kind, config
        self.variables, self.dtype = variables, dtype
        rng = np.random.default_rng(0)
        steps = sum(count for _, _, count in PHASES)
        self._start = [_scaled(rng.normal(size=like.shape), like.axis, 4) for like in variables]
        self._terms = [
            [_scaled(rng.normal(size=like.shape), like.axis, 1 / 3) for like in variables]
            for _ in range(steps)
        ]

    def trained(self, updated: Sequence[int], halved: bool = False) -> Trained:
        """Returns what a copy comes to that updates some variables, or halves of them.

        Args:
          updated: The positions of the variables that have a gradient.
          halved: Whether there is the first half of each variable that is cut, not all of it.

        Raises:
          NotProven: The copy cannot be made, or cannot update.
        """
        cut = [
            first_half(like.shape, like.axis) if halved and like.axis is not None else ()
            for like in self.variables
        ]
        with _as_reason("`from_config(get_config())` does not copy it, but"):
            optimizer = self._kind.from_config(dict(self._config))  # type: ignore[attr-defined]
        by_reference = _recorded(optimizer)
        with _as_reason(f"a copy with variables of {self.dtype}"):
            made = [
                _variable(like.path, start[index], self.dtype)
                for like, start, index in zip(self.variables, self._start, cut, strict=True)
            ]
            optimizer.build(made)
            moved = self._moved(optimizer, made, updated, cut)
        kept = [
            _unique([*listed, *by_reference.get(id(variable), [])])
            for variable, listed in zip(made, slots_of(optimizer, len(made)), strict=True)
        ]
        apart = {id(one) for each in kept for one in each} | {id(one) for one in made}
        everything = _unique([*optimizer.variables, *_variables_in(vars(optimizer))])
        shared = [one for one in everything if id(one) not in apart]
        numbers = [[np.asarray(one, np.float64) for one in each] for each in (*kept, shared)]
        return Trained(moved, numbers[:-1], numbers[-1])

    def _moved(
        self, optimizer: Any, made: list[Any], updated: Sequence[int], cut: list[Any]
    ) -> list[list[np.ndarray]]:
        own = [made[k] for k in updated]
        rate = tf.constant(RATE)
        terms = iter(self._terms)
        moved: list[list[np.ndarray]] = [[] for _ in made]
        for updates, scale, steps in PHASES:
            optimizer.iterations.assign(updates)
            before = [_value(variable) for variable in made]
            for term in itertools.islice(terms, steps):
                grads = [tf.constant(scale * term[k][cut[k]], self.dtype) for k in updated]
                # Eagerly, for TensorFlow frees no function that was traced.
                backend_update_step(optimizer, grads, own, rate)
                optimizer.iterations.assign_add(1)
            for each, variable, value in zip(moved, made, before, strict=True):
                each.append(_value(variable) - value)
        return moved


@contextlib.contextmanager
def _as_reason(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise NotProven(f"{what} raises {type(error).__name__}: {error}") from error


def first_half(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    """Returns the index of the first half along an axis.

    >>> first_half((6, 4), axis=1)
    (slice(None, None, None), slice(0, 2, None))
    """
    return (*[slice(None)] * axis, slice(0, shape[axis] // 2))


def _scaled(values: np.ndarray, axis: int | None, factor: float) -> np.ndarray:
    """Multiplies the first half, so that the halves have other norms."""
    if axis is not None:
        values[first_half(values.shape, axis)] *= factor
    return values


def _value(variable: keras.Variable) -> np.ndarray:
    return np.asarray(variable.numpy(), np.float64)


def _variable(path: str, value: np.ndarray, dtype: str) -> keras.Variable:
    *scopes, name = filter(None, path.split("/"))
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=dtype, name=name)


def _recorded(optimizer: Any) -> dict[int, list[Any]]:
    """Returns what, by a variable's id, is going to be made with the variable as a reference."""
    made: dict[int, list[Any]] = {}
    original = optimizer.add_variable_from_reference

    def add(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        slot = original(reference_variable, *args, **kwargs)
        made.setdefault(id(reference_variable), []).append(slot)
        return slot

    vars(optimizer)["add_variable_from_reference"] = add
    return made


def _variables_in(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _variables_in(part)
    elif isinstance(value, (keras.Variable, tf.Variable)):
        yield value


def _unique(values: Sequence[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())


def slots_of(optimizer: BaseOptimizer, count: int) -> list[list[Any]]:
    """Returns for each of an optimizer's variables what it keeps for that one.

    As Keras' own optimizers do, an optimizer keeps it in lists with a place for each variable.

    Args:
      optimizer: The optimizer, built.
      count: The number of variables that it was built for.

    >>> sgd = keras.optimizers.SGD(momentum=0.9)
    >>> sgd.build([keras.Variable([1.0]), keras.Variable([2.0])])
    >>> [len(slots) for slots in slots_of(sgd, 2)]
    [1, 1]
    """
    found: list[list[Any]] = [[] for _ in range(count)]
    for name, held in vars(optimizer).items():
        if name in ("_variables", "_trainable_variables") or not isinstance(held, (list, tuple)):
            continue
        if len(held) == count:
            for slots, one in zip(found, held, strict=True):
                if isinstance(one, keras.Variable):
                    slots.append(one)
    return found
