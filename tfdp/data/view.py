"""How a pipeline is looked at: from where on, how far, and what counts as trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class View:
    """One way to look at a pipeline; all views of it share the progress.

    Attributes:
      endless: Goes on with the next epoch where one ends.
      from_start: Begins with the first batch of epoch 0, whatever was trained; counts nothing.
      counts: Whether the batches that iterators give count as trained.
      share_fn: Applied to each replica's share of a batch, as `Dataset.map` does; None: nothing is.
    """

    endless: bool = False
    from_start: bool = False
    counts: bool = True
    share_fn: Callable[..., Any] | None = None
