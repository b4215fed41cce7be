"""Stragglers as a distribution: how long the slowest of many ranks takes."""

from __future__ import annotations

import functools
import math
import statistics

_POINTS = 400


@functools.lru_cache(4096)
def slowest(ranks: int, deviation: float) -> float:
    """Returns the expected maximum of the times of n ranks, over the mean of one.

    Times are independent and lognormal. The maximum of n has the distribution F^n, so its mean is
    the integral of F^-1(u^(1/n)) over u from 0 to 1: here a sum over 400 points.

    Args:
      ranks: The number of ranks, n.
      deviation: The standard deviation of the times' logarithm, which for small ones is that of
        the times over their mean.

    >>> slowest(1, 0.0), slowest(64, 0.0)
    (1.0, 1.0)
    >>> round(slowest(2, 0.1), 3), round(slowest(64, 0.1), 2), round(slowest(4096, 0.1), 2)
    (1.056, 1.26, 1.43)
    """
    if deviation == 0 or ranks == 1:
        return 1.0
    normal = statistics.NormalDist()
    quantiles = (
        normal.inv_cdf(((point + 0.5) / _POINTS) ** (1 / ranks)) for point in range(_POINTS)
    )
    most = statistics.fmean(math.exp(deviation * quantile) for quantile in quantiles)
    return most / math.exp(deviation**2 / 2)
