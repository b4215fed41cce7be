"""The memory of a replica: weights, gradients, the optimizer's state, and what travels."""

from __future__ import annotations

import dataclasses

from tfdp.prediction.cluster import MOST_RANKS
from tfdp.prediction.workload import Workload, buckets

#: What may be divided among the ranks: the argument `shard` of the strategy. The bytes are those of
#: ZeRO's stages 1 and 2 (Rajbhandari et al., arXiv 1910.02054, section 5), by formula. This is the
#: one place that knows of it.
SHARDS = ("none", "optimizer", "gradients")


@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes of a replica, by what they hold.

    Attributes:
      weights: The weights.
      gradients: The gradients.
      optimizer: The optimizer's slots.
      activations: What the forward pass keeps for the backward pass.
      traveling: Copies of the largest bucket, as it travels and as it comes.
      residual: What a compression keeps.

    >>> Memory(4.0, 4.0, 8.0, 0.0, 0.0, 0.0).total
    16.0
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    traveling: float
    residual: float

    @property
    def total(self) -> float:
        """All of them together."""
        return sum(dataclasses.astuple(self))


def memory_of(
    work: Workload, ranks: int, shard: str, bucket_bytes: int, keeps_residual: bool = False
) -> Memory:
    """Returns a replica's memory; for P weights of 4 bytes and k slots on n ranks:

    - "none": 4 P of weights, 4 P of gradients, 4 k P of the optimizer.
    - "optimizer": the optimizer's state divided by n.
    - "gradients": the gradients divided by n as well.

    Args:
      work: The model's tensors, slots and activations.
      ranks: The number of ranks, n.
      shard: One of :data:`SHARDS`.
      bucket_bytes: The strategy's `bucket_bytes`.
      keeps_residual: Whether a compression keeps what it has not sent.

    >>> from tfdp.prediction.workload import Tensor
    >>> adam = Workload((Tensor((1000, 1000)),), 0.0, 0.0, slots=2)
    >>> [memory_of(adam, 4, shard, 2**20).optimizer for shard in SHARDS]
    [8000000.0, 2000000.0, 2000000.0]
    >>> memory_of(adam, 4, "gradients", 2**20).gradients
    1000000.0
    """
    size = float(work.gradient_bytes)
    largest = max(bucket.size_bytes for bucket in buckets(work.tensors, bucket_bytes))
    return Memory(
        weights=size,
        gradients=size / (ranks if shard == "gradients" else 1),
        optimizer=work.slots * size / (1 if shard == "none" else ranks),
        activations=work.activation_bytes,
        traveling=2.0 * largest if ranks > 1 else 0.0,
        residual=size if keeps_residual else 0.0,
    )


def ranks_to_fit(work: Workload, limit_bytes: float, shard: str, bucket_bytes: int) -> int | None:
    """Returns the least number of ranks with which a replica's memory fits; None: none does.

    >>> from tfdp.prediction.workload import even_tensors
    >>> adam = Workload(even_tensors(250_000_000), 0.0, 0.0, slots=2)  # 1 GB of weights
    >>> ranks_to_fit(adam, 3e9, "none", 2**20), ranks_to_fit(adam, 3e9, "optimizer", 2**20)
    (None, 3)
    """

    def fits(ranks: int) -> bool:
        return memory_of(work, ranks, shard, bucket_bytes).total <= limit_bytes

    if fits(1):
        return 1
    # From two ranks on memory only falls.
    low, high = 1, MOST_RANKS
    if not fits(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
