"""Variables that each replica updates by itself, and so may have other values within a round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf


def apart_of(variable: Any) -> tf.Variable | None:
    """Returns the count of updates since a variable was the same on all replicas; None: always."""
    held = variable.value if isinstance(variable, keras.Variable) else variable
    found: tf.Variable | None = getattr(held, "apart", None)
    return found


def check_round_ended(variables: Iterable[Any], activity: str) -> None:
    """Checks that no round is open in which these variables differ between replicas.

    Raises:
      RuntimeError: One is.
    """
    counts = {id(a): a for a in map(apart_of, variables) if a is not None}
    if any(int(count.numpy()) for count in counts.values()):
        raise RuntimeError(
            f"Replicas must have one set of weights to {activity}, but they are within a round of "
            "the strategy's `synchronization`, in which each has its own. Call "
            "`strategy.synchronize(model)` first, on all ranks; `fit` does so at the end of each "
            "epoch."
        )
