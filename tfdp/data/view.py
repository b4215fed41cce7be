"""Views of a pipeline: the place they begin at, their end, and what counts as trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class View:
    """One way to look at a pipeline; all views of a pipeline share the progress.

    Attributes:
      endless: Whether the next epoch follows where one ends.
      from_start: Whether it begins with the first batch of epoch 0, whatever was trained, and
        counts nothing.
      counts: Whether the batches that iterators give count as trained.
      share_fn: A function that is applied to each replica's share of a batch, as `Dataset.map`
        does; None: the shares stay as they are.
    """

    endless: bool = False
    from_start: bool = False
    counts: bool = True
    share_fn: Callable[..., Any] | None = None
