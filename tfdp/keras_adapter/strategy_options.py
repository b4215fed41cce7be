"""The arguments of a strategy by which gradients are summed and kept, read from any strategy.

Of a strategy that is not this package's, such as a stand-in, they are None.
"""

from __future__ import annotations

from typing import Any

from tfdp.compression import UpdateCompression
from tfdp.synchronization import Synchronization


def update_compression_of(strategy: Any) -> UpdateCompression | None:
    """Returns the strategy's `compression`, if it is one of updates; None if of single sums."""
    found = getattr(strategy, "compression", None)
    return found if isinstance(found, UpdateCompression) else None


def synchronization_of(strategy: Any) -> Synchronization | None:
    """Returns the strategy's `synchronization`; None if gradients are summed."""
    found: Synchronization | None = getattr(strategy, "synchronization", None)
    return found


def shard_of(strategy: Any) -> str | None:
    """Returns the strategy's `shard`; None if each replica keeps all."""
    found: str | None = getattr(strategy, "shard", None)
    return found
