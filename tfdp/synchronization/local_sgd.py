"""Local SGD: the mean of the replicas' weights, every so many updates."""

import dataclasses

from tfdp.synchronization.weight_averaging import WeightAveraging, check_count


@dataclasses.dataclass(frozen=True)
class LocalSGD(WeightAveraging):
    """Averages the replicas' weights every `every` updates (local and post-local SGD).

    1. Each replica updates its weights with its own optimizer, `every` times, by its own share of
       the gradient: n times its term of the global batch's, so that the mean over the n replicas
       is that gradient.
    2. The mean of the replicas' weights becomes the weights of all. Momenta and other state of
       the optimizer stay those of each replica, as in the paper.

    With `every=1` and SGD without momentum this is training on one device, to rounding.

    Source: Lin, Stich, Patel, Jaggi: Don't Use Large Mini-Batches, Use Local SGD, arXiv 1808.07217
    (2018), algorithm 1; the warm-up is its post-local SGD.

    Cost: the weights' bytes, 2(n-1)/n times per replica, once a round: 1 / `every` of the bytes of
    summing gradients. No memory.

    Args:
      every: The number of updates in a round, at least 1.
      warmup_steps: The number of first updates after each of which the replicas synchronize.

    Raises:
      ValueError: A number is not whole, or out of range.

    >>> LocalSGD(every=10)
    LocalSGD(every=10, warmup_steps=0)
    """

    every: int
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_count("LocalSGD", "every", self.every, 1, "LocalSGD(every=10)")
        check_count(
            "LocalSGD", "warmup_steps", self.warmup_steps, 0, "LocalSGD(10, warmup_steps=1000)"
        )
