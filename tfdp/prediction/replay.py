"""The replay of a step's buckets: each begins when it is full, and the links take them in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfdp.prediction.sending import Sum


class Sent(NamedTuple):
    """One bucket in the replay.

    Attributes:
      ready: When its gradients were there, in seconds since the step began.
      begun: When the links began to move it.
      ended: When every rank had its sum.
    """

    ready: float
    begun: float
    ended: float


def replay(arrivals: Sequence[tuple[float, Sum]], in_turn: bool) -> list[Sent]:
    """Replays sums that are asked for at given times: the events of a step in the order of time.

    A bucket waits until its gradients are there, the core that compresses has done so, and the
    links are free; the first that is there is the first that is sent. It occupies the links for
    as long as the busiest of them is busy; what its sum takes beyond that is waiting (latency,
    steps), in which the next bucket may already move. Where `in_turn`, it may not: the engine's own
    all-reduces run one after the other.

    Args:
      arrivals: The time at which each bucket's gradients are there, and its sum.
      in_turn: Whether a sum begins only when the one before has ended.

    Returns:
      The buckets in the order in which they began.

    >>> one = Sum(0.0, 1.0, 1.5, 0.0)
    >>> [sent.ended for sent in replay([(0.0, one), (0.25, one)], in_turn=False)]
    [1.5, 2.5]
    >>> [sent.ended for sent in replay([(0.0, one), (0.25, one)], in_turn=True)]
    [1.5, 3.0]
    """
    links_free = core_free = 0.0
    sent = []
    for ready, sum_ in sorted(arrivals, key=lambda arrival: arrival[0]):
        core_free = max(ready, core_free) + sum_.core_seconds
        begun = max(core_free, links_free)
        links_free = begun + (sum_.seconds if in_turn else sum_.link_seconds)
        sent.append(Sent(ready, begun, begun + sum_.seconds))
    return sent
