"""The arguments of a strategy that say what its replicas exchange in a training."""

from __future__ import annotations

import dataclasses

from tfdp.compression import Cast, Compression, UpdateCompression
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
        if self.shard is not None:  # parts are cast in the program itself
            return self.update_compression is not None
        return not (self.compression is None and self.synchronization is None)

    @property
    def cast(self) -> Cast | None:
        """The `compression`, if it is a `Cast`; else None."""
        return self.compression if isinstance(self.compression, Cast) else None

    @property
    def update_compression(self) -> UpdateCompression | None:
        """The `compression`, if it is one of updates; None if of single sums."""
        return self.compression if isinstance(self.compression, UpdateCompression) else None
