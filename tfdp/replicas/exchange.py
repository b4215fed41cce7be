"""The arguments of a strategy that say what its replicas exchange in a training."""

from __future__ import annotations

import dataclasses

from tfdp.compression import Compression, UpdateCompression
from tfdp.synchronization import Synchronization


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What replicas exchange: sums of whole gradients, unless an attribute says otherwise.

    Attributes:
      compression: What gradients become while they travel.
      synchronization: What replicas exchange in place of gradients.
      shard: "optimizer", "gradients" or "parameters": what each replica holds a part of.
    """

    compression: Compression | UpdateCompression | None = None
    synchronization: Synchronization | None = None
    shard: str | None = None

    @property
    def keeps_summands(self) -> bool:
        """Whether code of the replicas' own wants summands of gradients, and not their sums."""
        has_code = not (self.compression is None and self.synchronization is None)
        return has_code and self.shard is None  # whose parts are cast in the program itself

    @property
    def update_compression(self) -> UpdateCompression | None:
        """The `compression`, if it is one of updates; None if of single sums."""
        return self.compression if isinstance(self.compression, UpdateCompression) else None
