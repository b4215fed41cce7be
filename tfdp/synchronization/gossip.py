"""Gossip: each replica averages its weights with a few neighbours, and no replica waits for all."""

import dataclasses
from typing import Any

from tfdp.synchronization.weight_averaging import WeightAveraging, check_count

_GRAPHS = ("exponential", "ring")


@dataclasses.dataclass(frozen=True)
class Gossip(WeightAveraging):
    """Averages each replica's weights with those of its neighbours (decentralized SGD).

    1. Each replica updates its weights with its own optimizer, as in `LocalSGD`.
    2. After every `every` updates it sends its weights to its neighbours of this mixing, and takes
       the mean of its own weights and theirs. Momenta and other state stay its own.

    The graph gives the neighbours among n replicas:

    - "exponential": in mixing k replica i sends to i + 2^(k mod m), modulo n, and receives from
      i - 2^(k mod m); m is the least number with 2^m >= n. So each has one neighbour at a time and
      hears of all within m mixings; where n is a power of two, m mixings without updates between
      them are the mean of all.
    - "ring": replica i and its neighbours i - 1 and i + 1 send to each other, always.

    In each mixing of the exponential graph the senders are a permutation P of the replicas, so the
    rows and columns of its matrix (I + P) / 2 all add up to 1, and so do those of the ring's
    (I + P + P') / 3. Such a mixing leaves the mean of the replicas' weights what it was. The
    weights of push-sum in Stochastic Gradient Push would all stay 1, so they are left out: only
    graphs whose columns add up to 1 and whose rows do not need them.

    Mixings alone never lead to one set of weights. At the end of an epoch of `fit`, and in
    `strategy.synchronize`, all replicas continue from their mean.

    Source: Lian et al.: Can Decentralized Algorithms Outperform Centralized Algorithms? (D-PSGD),
    arXiv 1705.09056 (2017), for the ring; Assran et al.: Stochastic Gradient Push for Distributed
    Deep Learning, arXiv 1811.10792 (2018), algorithm 1 and appendix A, for the exponential graph.
    Weights are mixed after the update, as there; D-PSGD's algorithm 1 mixes those from before it,
    and adds the update.

    Cost: for S bytes of weights a replica sends S in a mixing of the exponential graph and 2 S in
    one of the ring (S of two replicas), in one step of latency, for any n; a sum of gradients sends
    2(n-1)/n S in 2(n-1) steps around a ring. No memory.

    Args:
      graph: "exponential" or "ring".
      every: The number of updates before each mixing, at least 1.

    Raises:
      ValueError: The graph is unknown, or `every` is no whole number of at least 1.

    >>> Gossip("ring")
    Gossip(graph='ring', every=1)
    """

    graph: str = "exponential"
    every: int = 1

    def __post_init__(self) -> None:
        if self.graph not in _GRAPHS:
            raise ValueError(
                f'`graph` of Gossip must be "exponential" or "ring", but received {self.graph!r}. '
                'Use Gossip("exponential").'
            )
        check_count("Gossip", "every", self.every, 1, 'Gossip("exponential", every=1)')

    def mixings(self, num_replicas: int) -> tuple[tuple[int, ...], ...]:
        """Returns the distances of the neighbours; see `WeightAveraging.mixings`.

        >>> Gossip("exponential").mixings(6), Gossip("ring").mixings(6), Gossip().mixings(1)
        (((1,), (2,), (4,)), ((1, 5),), ((),))
        """
        if num_replicas < 3:
            return (((1,) * (num_replicas - 1)),)
        if self.graph == "ring":
            return ((1, num_replicas - 1),)
        return tuple((2**k,) for k in range((num_replicas - 1).bit_length()))

    def describe(self) -> dict[str, Any]:
        """Describes the synchronization; see `Synchronization.describe`.

        >>> Gossip("ring").describe()
        {'name': 'Gossip', 'every': 1, 'graph': 'ring'}
        """
        return super().describe() | {"graph": self.graph}
