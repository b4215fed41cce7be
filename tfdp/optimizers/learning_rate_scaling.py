"""The rules by which the learning rate follows the batch."""

from __future__ import annotations

import math
from typing import Any, Literal

from tfdp.optimizers import argument_checks

_RULES = {"linear": lambda growth: growth, "sqrt": math.sqrt}


class ScaledRate(float):
    """A learning rate that knows the batch that it is meant for.

    Attributes:
      base_batch: The batch that the base rate was tuned with.
      batch: The batch that this rate is for.
    """

    base_batch: int
    batch: int

    def __new__(cls, rate: float, base_batch: int, batch: int) -> ScaledRate:
        """Makes a float with two attributes."""
        self = super().__new__(cls, rate)
        self.base_batch, self.batch = base_batch, batch
        return self

    def __reduce__(self) -> Any:
        return type(self), (float(self), self.base_batch, self.batch)


def scale_learning_rate(
    base: float,
    base_batch: int,
    batch: int,
    rule: Literal["linear", "sqrt"] = "linear",
) -> float:
    """Returns the learning rate for a batch, from the rate that was tuned with another batch.

    - `"linear"`: base · batch / base_batch. For SGD: one large step stands for several small ones
      that are averaged (Goyal et al., 2017, arXiv:1706.02677, section 2.1, with a warm-up).
    - `"sqrt"`: base · √(batch / base_batch). For Adam and LAMB: it keeps the variance of the steps
      (Krizhevsky, 2014, arXiv:1404.5997, section 5; You et al., arXiv:1904.00962, section 4).

    Args:
      base: The rate that is right for `base_batch`, at least 0.
      base_batch: A number of examples, at least 1.
      batch: The number of examples of one update: the global batch times
        `gradient_accumulation_steps`.
      rule: How the rate grows.

    Returns:
      A float that remembers its batch; under a strategy of tfdp `fit` warns if its own batch
      differs.

    Raises:
      ValueError: A number is out of range, or the rule is unknown.

    >>> scale_learning_rate(0.1, base_batch=256, batch=1024)
    0.4
    >>> scale_learning_rate(0.1, base_batch=256, batch=1024, rule="sqrt")
    0.2
    """
    argument_checks.at_least("base", base, 0, "Use the rate that was tuned, such as base=0.1.")
    base_batch = argument_checks.whole("base_batch", base_batch, 1, "Use base_batch=256.")
    batch = argument_checks.whole("batch", batch, 1, "Use batch=1024.")
    if rule not in tuple(_RULES):
        raise ValueError(
            f"`rule` must be one of {', '.join(map(repr, _RULES))}, but received {rule!r}. "
            'Use rule="linear" for SGD, rule="sqrt" for Adam and LAMB.'
        )
    return ScaledRate(base * _RULES[rule](batch / base_batch), base_batch, batch)
