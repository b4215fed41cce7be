"""The proof that an optimizer's update of a part is the part of its update, made on scratch copies.

A copy of the optimizer updates small variables with the names of the real ones, and another updates
their first halves. Where these end at other numbers, the optimizer is not elementwise, as one with
a norm of the variable. Where some variables end at other numbers without the others, or what the
optimizer keeps for all together does, it cannot be sharded.

1. Weights and gradients of the two halves have other norms, and another ratio of these.
2. Three steps are followed by two after a million updates, with gradients of a ten-thousandth, and
   two with gradients ten thousand times as large.
3. What a variable moved by is compared after each of the three, in float64 where the optimizer can.
4. Variables with an axis of 128 or more are tried with up to 256, too, one for each axis.

What depends on anything else, such as a number of elements above that, is not seen.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.keras_adapter._keras import BaseOptimizer, rate_of_optimizer
from tfdp.keras_adapter.gradients.scratch_copies import (
    RATE,
    SIZES,
    Copies,
    Like,
    NotProven,
    first_half,
)

_SIZE, _OTHER_SIZE = SIZES
_LARGE = 128  # of an axis that is tried with up to twice as much

# Of what a variable moves by. A norm of half a variable differs from the whole's by a tenth.
_TOLERANCE = 1e-4
# What a number may be off by besides, for variables of a magnitude of 1.
_ROUNDING = {"float64": 1e-13, "float32": 1e-6}

# What was found, by class, configuration and variables.
_found: dict[tuple[Any, ...], bool] = {}


def is_elementwise(optimizer: BaseOptimizer, variables: Sequence[Like]) -> bool:
    """Returns whether an optimizer's update of a part of a variable is that part of its update.

    Cost: a second, and of an elementwise one about thirty milliseconds for each variable, once for
    each kind of optimizer and model in a process.

    Args:
      optimizer: The optimizer, built or not; it is left as it is.
      variables: What it is to update.

    Raises:
      NotProven: Not even whole variables can be updated apart from each other, or the optimizer
        cannot be copied by `get_config` and `from_config`.

    >>> import keras
    >>> kernel = Like("dense/kernel", (512, 64), axis=0)
    >>> is_elementwise(keras.optimizers.Adam(), [kernel])
    True
    >>> is_elementwise(keras.optimizers.Lamb(), [kernel])
    False
    """
    config = _config(optimizer)
    key = (type(optimizer), repr(config), tuple(variables))
    if key not in _found:
        # Another thread is outside of all scopes and steps.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            _found[key] = thread.submit(_prove, type(optimizer), config, variables).result()
    return _found[key]


def _config(optimizer: BaseOptimizer) -> dict[str, Any]:
    """Returns the configuration of a copy, with a constant rate and nothing around the update."""
    own = vars(optimizer)
    rate = rate_of_optimizer(optimizer)
    # A schedule of a user's own may have no configuration, and no variable is read in a graph.
    own["_learning_rate"] = RATE
    try:
        with tf.init_scope():
            config = optimizer.get_config()
    except Exception as error:
        raise NotProven(f"its `get_config` raises {type(error).__name__}: {error}") from error
    finally:
        own["_learning_rate"] = rate
    instead = {
        "learning_rate": RATE,
        "use_ema": False,
        "gradient_accumulation_steps": None,
        "name": None,
    }
    return config | {name: value for name, value in instead.items() if name in config}


def _prove(kind: type, config: dict[str, Any], variables: Sequence[Like]) -> bool:
    cut = {(len(one.shape), one.axis): one for one in variables if one.axis is not None}
    # More, so that no list of an optimizer has by chance as many entries as there are variables.
    beside = [Like(f"beside_{k}/kernel", (_SIZE, _OTHER_SIZE), axis=0) for k in range(3)]
    few = [one.small() for one in cut.values()] + beside
    _with_any_dtype(_check_apart, kind, config, few)
    tried = [few, [one.large() for one in cut.values() if max(one.shape) >= _LARGE]]
    tried.append([one.small() for one in variables] + beside[:1])
    return all(_with_any_dtype(_updates_halves, kind, config, each) for each in tried if each)


def _with_any_dtype(
    act: Callable[[Copies], bool], kind: type, config: dict[str, Any], variables: Sequence[Like]
) -> bool:
    """Calls `act` with copies in float64, or in float32 if the optimizer fails in float64."""
    try:
        return act(Copies(kind, config, variables, "float64"))
    except NotProven as error:
        if error.__cause__ is None:
            raise
    return act(Copies(kind, config, variables, "float32"))


def _check_apart(copies: Copies) -> bool:
    """Raises NotProven unless each variable is updated apart from the others, and moves."""
    every, rounding = range(len(copies.variables)), _ROUNDING[copies.dtype]
    whole = copies.trained(every)
    if not any(each.any() for moved in whole.moved for each in moved):
        raise NotProven("it moves no variable by gradients of random numbers")
    for first in (0, 1):
        some = every[first::2]
        alone = copies.trained(some)
        if not (
            all(_alike(alone.moved[k], whole.moved[k], rounding) for k in some)
            and _alike(alone.shared, whole.shared, rounding)
        ):
            raise NotProven(
                "its update of one variable depends on the other variables, or changes what it "
                "keeps for all of them. What is kept for one variable is known by a list with a "
                "place for each variable, or by `add_variable_from_reference`"
            )
    return True


def _updates_halves(copies: Copies) -> bool:
    """Returns whether an update of the variables' first halves is the first half of an update."""
    every, rounding = range(len(copies.variables)), _ROUNDING[copies.dtype]
    whole, half = copies.trained(every), copies.trained(every, halved=True)
    if not _alike(half.shared, whole.shared, rounding):
        return False
    return all(
        _begins(one, other, like.axis, rounding)
        for k, like in enumerate(copies.variables)
        for one, other in zip(
            half.moved[k] + half.slots[k], whole.moved[k] + whole.slots[k], strict=True
        )
    )


def _begins(half: np.ndarray, whole: np.ndarray, axis: int | None, rounding: float) -> bool:
    """Returns whether what is kept of a half is the half, or else the whole, of that of a whole."""
    if axis is not None and axis < whole.ndim and half.shape != whole.shape:
        whole = whole[first_half(whole.shape, axis)]
    return _alike([half], [whole], rounding)


def _alike(one: Sequence[np.ndarray], other: Sequence[np.ndarray], rounding: float) -> bool:
    """Returns whether two lists hold the same within rounding."""
    return len(one) == len(other) and all(
        a.shape == b.shape
        and np.allclose(a, b, rtol=0, atol=_TOLERANCE * _largest(b) + rounding, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0, where=np.isfinite(array)))
