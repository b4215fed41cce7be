"""Variables that each replica updates by itself, and so may have other values within a round."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdp.callbacks.checkpoint.model_variables import tensorflows


def apart_of(variable: Any) -> tuple[tf.Variable, ...]:
    """Returns the counts of updates in open rounds of a variable; none: replicas have one value."""
    found: tuple[tf.Variable, ...] = getattr(tensorflows(variable), "apart", ())
    return found


def check_round_ended(variables: Iterable[Any], activity: str) -> None:
    """Checks that no round is open in which these variables differ between replicas.

    Raises:
      RuntimeError: One is.
    """
    counts = {id(count): count for variable in variables for count in apart_of(variable)}
    if any(int(count.numpy()) for count in counts.values()):
        raise RuntimeError(
            f"Replicas must have one set of weights to {activity}, but they are within a round of "
            "the strategy's `synchronization`, in which each has its own. Call "
            "`strategy.synchronize(model)` first, on all ranks; `fit` does so at the end of each "
            "epoch."
        )
