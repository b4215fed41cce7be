"""The replay of a step's buckets: each begins when it is full, and the links take them in turn."""

from __future__ import annotations

from collections.abc import Sequence

from tfdp.tools.prediction.sending import Sum


def replay(arrivals: Sequence[tuple[float, Sum]]) -> list[float]:
    """Replays sums that are asked for at given times: the events of a step in the order of time.

    A bucket waits until its gradients are there, the core that compresses has done so, and the
    links are free; the first that is there is the first that is sent. It occupies them for as long
    as the busiest link, or the core that moves the bytes, is busy; what its sum takes beyond that
    is waiting (latency, steps), in which the next bucket may already move, unless it is `in_turn`.

    Args:
      arrivals: The time at which each bucket's gradients are there, and its sum.

    Returns:
      When every rank has the sum of each bucket, in the order in which they began.

    >>> replay([(0.0, Sum(0.0, 1.0, 1.5)), (0.25, Sum(0.0, 1.0, 1.5))])
    [1.5, 2.5]
    >>> replay([(0.0, Sum(0.0, 1.0, 1.5, True)), (0.25, Sum(0.0, 1.0, 1.5, True))])
    [1.5, 3.0]
    """
    links_free = core_free = 0.0
    ended = []
    for ready, sum_ in sorted(arrivals, key=lambda arrival: arrival[0]):
        core_free = max(ready, core_free) + sum_.core_seconds
        begun = max(core_free, links_free)
        links_free = begun + (sum_.seconds if sum_.in_turn else sum_.busy_seconds)
        ended.append(begun + sum_.seconds)
    return ended
