"""The proof that an optimizer's update of a part is the part of its update, made on scratch copies.

A copy of the optimizer updates two small variables, and others update slices of the first beside
another second one. Where slices end at other numbers than the whole, the optimizer is not
elementwise, as one with a norm of the variable. Where the second variable, or what the optimizer
keeps for all variables together, changes what becomes of the first, it cannot be sharded.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.keras_adapter._keras import BaseOptimizer, backend_update_step, rate_of_optimizer

_STEPS = 3
_RATE = 0.01
_SIZE = 6
_TOLERANCE = 1e-6  # a norm of half a variable differs from the whole's by a tenth and more

# What was found, by class, configuration, and the axes of variables.
_found: dict[tuple[Any, ...], bool] = {}


class NotProven(Exception):
    """The reason why an optimizer's variables cannot be updated apart from each other."""


def is_elementwise(optimizer: BaseOptimizer, axes: Sequence[tuple[int, int]]) -> bool:
    """Returns whether an optimizer's update of a part of a variable is that part of its update.

    Args:
      optimizer: The optimizer, built or not; it is left as it is.
      axes: The ranks of tensors, with the axis that they are cut along.

    Raises:
      NotProven: Not even whole variables can be updated apart from each other, or the optimizer
        cannot be copied by `get_config` and `from_config`.

    >>> is_elementwise(keras.optimizers.Adam(), [(2, 0)])
    True
    >>> is_elementwise(keras.optimizers.Lamb(), [(2, 0)])
    False
    """
    config = _config(optimizer)
    key = (type(optimizer), json.dumps(config, default=repr, sort_keys=True), tuple(axes))
    if key not in _found:
        # Another thread is outside of all scopes and steps.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            _found[key] = thread.submit(_prove, type(optimizer), config, axes).result()
    return _found[key]


def _config(optimizer: BaseOptimizer) -> dict[str, Any]:
    """Returns the configuration of a copy, with a constant rate and nothing around the update."""
    own = vars(optimizer)
    rate = rate_of_optimizer(optimizer)
    own["_learning_rate"] = None  # a schedule of a user's own may have no configuration
    try:
        config = optimizer.get_config()
    except Exception as error:
        raise NotProven(f"its `get_config` raises {type(error).__name__}: {error}") from error
    finally:
        own["_learning_rate"] = rate
    config["learning_rate"] = _RATE
    around = {"use_ema": False, "gradient_accumulation_steps": None, "name": None}
    return config | {name: value for name, value in around.items() if name in config}


def _prove(kind: type, config: dict[str, Any], axes: Sequence[tuple[int, int]]) -> bool:
    elementwise = True
    for rank, axis in axes:
        rng = np.random.default_rng(rank)
        shape = (_SIZE,) * rank
        # The two halves of a variable have other norms, so that a norm shows.
        scale = np.ones(shape)
        scale[(*[slice(None)] * axis, slice(_SIZE // 2, None))] = 4.0
        start = scale * rng.normal(size=shape)
        gradients = [scale * rng.normal(size=shape) for _ in range(_STEPS)]
        beside = rng.normal(size=(2, *shape))
        whole, shared = _trained(kind, config, start, gradients, beside[0])
        again, _ = _trained(kind, config, start, gradients, beside[1])
        alone, kept = _trained(kind, config, start, gradients, beside[0], updates_both=False)
        if not (_alike([whole, whole], [again, alone]) and _alike(shared, kept)):
            raise NotProven(
                "its update of one variable depends on the other variables, or changes what it "
                "keeps for all of them"
            )
        parts, states = [], []
        for half in (slice(0, _SIZE // 2), slice(_SIZE // 2, None)):
            index = (*[slice(None)] * axis, half)
            cut = [gradient[index] for gradient in gradients]
            part, state = _trained(kind, config, start[index], cut, beside[0])
            parts.append(part)
            states.append(state)
        joined = np.concatenate(parts, axis)
        alike = all(_alike(state, shared) for state in states)
        elementwise = elementwise and alike and _alike([joined], [whole])
    return elementwise


def _alike(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    """Returns whether two lists hold the same within rounding."""
    return len(one) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=_TOLERANCE)
        for a, b in zip(one, other, strict=True)
    )


def _trained(
    kind: type,
    config: dict[str, Any],
    start: np.ndarray,
    gradients: Sequence[np.ndarray],
    beside: np.ndarray,
    updates_both: bool = True,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns what becomes of a variable, and what the optimizer then keeps for all together."""
    try:
        optimizer = kind.from_config(dict(config))  # type: ignore[attr-defined]
    except Exception as error:
        raise NotProven(
            f"`from_config(get_config())` does not copy it, but raises {type(error).__name__}: "
            f"{error}"
        ) from error
    variables = [
        keras.Variable(value, dtype="float32", name=name)
        for name, value in (("kernel", start), ("other_kernel", beside))
    ]
    optimizer.build(variables)
    chosen = 2 if updates_both else 1
    for gradient in gradients:
        terms = [tf.constant(term, tf.float32) for term in (gradient, beside)][:chosen]
        backend_update_step(optimizer, terms, variables[:chosen], tf.constant(_RATE))
        optimizer.iterations.assign_add(1)
    apart = {id(variable) for each in slots_of(optimizer, 2) for variable in each}
    known = {id(one): one for one in [*optimizer.variables, *vars(optimizer).values()]}
    shared = [
        np.asarray(one)
        for one in known.values()
        if isinstance(one, (keras.Variable, tf.Variable)) and id(one) not in apart
    ]
    return np.asarray(variables[0]), shared


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
