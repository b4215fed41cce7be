"""The memory of a replica: weights, gradients, the optimizer's state, and what travels."""

import dataclasses
from collections.abc import Callable

from tfdp.base import sharding
from tfdp.tools.prediction.workload import Workload, buckets

#: What may be divided among the ranks: the argument `shard` of the strategy; see docs/memory.
SHARDS = ("none", *sharding.SHARDS)

_MOST_RANKS = 2**16  # among which memory is divided


@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes of a replica, by what they hold.

    Attributes:
      weights: The weights, also those that are not trained.
      gradients: The gradients of a backward pass.
      accumulated: The sums of gradients that the optimizer accumulates.
      optimizer: The optimizer's slots.
      activations: What the forward pass keeps for the backward pass.
      traveling: Copies of the largest bucket, as it travels and as it comes; with weights that are
        divided the whole ones of two buckets, too.
      residual: What a compression keeps, or what waits for the next step to send it.

    >>> Memory(4.0, 4.0, 0.0, 8.0, 0.0, 0.0, 0.0).total
    16.0
    """

    weights: float
    gradients: float
    accumulated: float
    optimizer: float
    activations: float
    traveling: float
    residual: float

    @property
    def total(self) -> float:
        return sum(dataclasses.astuple(self))


def memory_of(
    work: Workload,
    ranks: int,
    shard: str,
    bucket_bytes: int,
    accumulation: int = 1,
    compresses_updates: bool = False,
    delays: bool = False,
) -> Memory:
    """Returns a replica's memory; for P weights of 4 bytes that are trained and k slots on n ranks:

    - "none": 4 P of weights, 4 P of gradients, 4 k P of the optimizer, and 4 P of accumulated
      gradients where there is more than one step of accumulation.
    - "optimizer": the optimizer's slots divided by n.
    - "gradients": the accumulated gradients divided by n as well. The gradients of one backward
      pass are all there until their sums are sharded: this counts all of them, which is the most.

    - "parameters": weights and gradients divided by n as well, and the whole of two buckets: of
      weights the one that computes and the one that comes next, of gradients one that is sent; of
      gradients all where a compression of updates waits for them.

    The stages 1 to 3 of ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5), of which the
    second divides the gradients of a backward pass in "parameters" alone.

    Args:
      work: The model's tensors, slots and activations.
      ranks: The number of ranks, n.
      shard: One of :data:`SHARDS`.
      bucket_bytes: The strategy's `bucket_bytes`.
      accumulation: The optimizer's `gradient_accumulation_steps`.
      compresses_updates: Whether a compression keeps what it has not sent, and waits for all
        gradients, which are whole until then.
      delays: Whether gradients wait until the next step sends them.

    >>> from tfdp.tools.prediction.workload import GradientTensor
    >>> adam = Workload((GradientTensor((1000, 1000)),), 0.0, 0.0, slots=2)
    >>> [memory_of(adam, 4, shard, 2**20).optimizer for shard in SHARDS]
    [8000000.0, 2000000.0, 2000000.0, 2000000.0]
    >>> [memory_of(adam, 4, shard, 2**20, 8).accumulated for shard in SHARDS]
    [4000000.0, 4000000.0, 1000000.0, 1000000.0]
    >>> [memory_of(adam, 4, shard, 2**20).weights for shard in SHARDS]
    [4000000.0, 4000000.0, 4000000.0, 1000000.0]
    """
    size = float(work.gradient_bytes)
    largest = max(bucket.size_bytes for bucket in buckets(work.tensors, bucket_bytes))
    accumulated = size if accumulation > 1 else 0.0
    level = SHARDS.index(shard)
    is_divided = level == SHARDS.index("parameters") and ranks > 1
    sent_at_once = is_divided and not compresses_updates
    gradients = min(size, size / ranks + largest) if sent_at_once else size
    return Memory(
        weights=(size / ranks if is_divided else size) + work.frozen_bytes,
        gradients=gradients,
        accumulated=accumulated / (ranks if level >= SHARDS.index("gradients") else 1),
        optimizer=work.slots * size / (ranks if level >= SHARDS.index("optimizer") else 1),
        activations=work.activation_bytes,
        traveling=(4.0 if is_divided else 2.0) * largest if ranks > 1 else 0.0,
        residual=size if compresses_updates or delays else 0.0,
    )


def ranks_to_fit(bytes_on: Callable[[int], float], limit_bytes: float) -> int | None:
    """Returns the number of ranks from which on a replica's bytes fit; None: there is none.

    Args:
      bytes_on: The bytes on a number of ranks, which only fall from two ranks on.
      limit_bytes: What a replica has.

    >>> ranks_to_fit(lambda ranks: 4e9 / ranks, 1.5e9), ranks_to_fit(lambda ranks: 4e9, 1.5e9)
    (3, None)
    >>> ranks_to_fit(lambda ranks: 1e9 + (ranks > 1) * 4e9 / ranks, 2e9)  # one alone sends nothing
    4
    """
    if bytes_on(2) <= limit_bytes:
        return 1 if bytes_on(1) <= limit_bytes else 2
    low, high = 2, _MOST_RANKS
    if bytes_on(high) > limit_bytes:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bytes_on(middle) <= limit_bytes else (middle, high)
    return high
