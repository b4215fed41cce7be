"""Buckets: the tensors that travel together in one all-reduce. Pure Python, no TensorFlow."""

import dataclasses
from collections.abc import Hashable, Sequence

# From this size on copying into a bucket costs more than the latency it saves: two processes of a
# host move 2 MiB in about 5 ms through gRPC, and a collective without content takes 1 to 2 ms.
ALONE_BYTES = 2 * 2**20

# The most bytes that travel together, if nobody says otherwise.
DEFAULT_BYTES = 25 * 2**20

# The first bucket is small, so it fills and travels while the backward pass has only begun.
FIRST_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Item:
    """One tensor to be sent.

    Attributes:
      kind: A property that all tensors of a bucket must share, such as the dtype.
      size_bytes: The tensor's size, or None where its shape is not known before the step runs.
    """

    kind: Hashable
    size_bytes: int | None


def assign(
    items: Sequence[Item], bucket_bytes: int, alone_bytes: int = ALONE_BYTES
) -> list[list[int]]:
    """Splits `items` into buckets of one kind and at most `bucket_bytes` each.

    A tensor that fills half a bucket or more, or `alone_bytes`, travels alone: a collective of its
    own costs less than the copies into a bucket and out of it. A tensor of unknown size travels
    alone as well. The first bucket of a kind holds at most `FIRST_BYTES`, or one tensor.

    Args:
      items: The tensors in the order in which they become ready.
      bucket_bytes: The limit of a bucket with several tensors, in bytes.
      alone_bytes: The least tensor that travels alone.

    Returns:
      Indices into `items`: within a bucket in their order, buckets in the order in which they fill.

    Raises:
      ValueError: `bucket_bytes` is below 1.

    >>> assign([Item("f4", 4), Item("f2", 2), Item("f4", 90), Item("f4", 8)], bucket_bytes=100)
    [[2], [0, 3], [1]]
    """
    if bucket_bytes < 1:
        raise ValueError(
            f"`bucket_bytes` must be at least 1, but received {bucket_bytes}. "
            "Use bucket_bytes=25 * 2**20 for 25 MiB."
        )
    done: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    filled_bytes: dict[Hashable, int] = {}
    limits: dict[Hashable, int] = {}
    for index, item in enumerate(items):
        if item.size_bytes is None or item.size_bytes >= min(bucket_bytes / 2, alone_bytes):
            done.append([index])
            continue
        limit = limits.get(item.kind, min(bucket_bytes, FIRST_BYTES))
        if item.kind in filling and filled_bytes[item.kind] + item.size_bytes > limit:
            done.append(filling.pop(item.kind))
            filled_bytes[item.kind] = 0
            limits[item.kind] = bucket_bytes
        filling.setdefault(item.kind, []).append(index)
        filled_bytes[item.kind] = filled_bytes.get(item.kind, 0) + item.size_bytes
    return done + list(filling.values())
