"""The learning rates of a model, which all ranks must have alike while they train.

A callback may set one at any time. Ranks of which some have it alone would part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base import threads
from tfdp.errors import RankMismatchError
from tfdp.keras._keras import KerasVariable, rate_of_optimizer
from tfdp.keras.nested_optimizers import optimizers_of

_CALLED = "the learning rate of optimizer"


def names(model: Any) -> list[str]:
    """Returns what to call the learning rates that may be set; a schedule is no such rate."""
    return [f"{_CALLED} `{optimizer.name}`" for optimizer in _that_may_be_set(model)]


def are_named(name: str) -> bool:
    """Returns whether a name is one of `names`."""
    return name.startswith(_CALLED)


def bits(model: Any) -> list[tf.Tensor]:
    """Returns the learning rates in the order of `names`, each as the number of its bits, int64."""
    return [
        tf.cast(tf.bitcast(tf.cast(_value(optimizer), tf.float32), tf.int32), tf.int64)
        for optimizer in _that_may_be_set(model)
    ]


def differ(rank: int, name: str, by_rank: Sequence[int]) -> RankMismatchError:
    """Returns the error for a learning rate that is another one on some rank.

    Args:
      rank: The rank of this process.
      name: What the learning rate is called, one of `names`.
      by_rank: The `bits` of the learning rate that each rank has.

    >>> bits = [tf.bitcast(rate, tf.int32).numpy() for rate in (0.1, 0.05)]
    >>> print(differ(1, "the learning rate of optimizer `adam`", bits))
    Rank 1: the learning rate of optimizer `adam` must be alike on all ranks, but it is 0.1 on rank
    0 and 0.05 on rank 1. Give the callback that sets it, ... to all ranks, ...
    """
    rates = np.asarray(by_rank, "int32").view("float32")
    each = " and ".join(f"{value:.7g} on rank {rank}" for rank, value in enumerate(rates))
    return RankMismatchError(
        f"Rank {rank}: {name} must be alike on all ranks, but it is {each}. Give the callback that "
        "sets it, ReduceLROnPlateau for example, to all ranks, and let it decide by what is the "
        f"same on all, as logs are.{threads.hint()}"
    )


def _that_may_be_set(model: Any) -> list[Any]:
    return [
        optimizer
        for optimizer in optimizers_of(model)
        if isinstance(rate_of_optimizer(optimizer), KerasVariable)
    ]


def _value(optimizer: Any) -> tf.Tensor:
    return tf.convert_to_tensor(rate_of_optimizer(optimizer).value)
