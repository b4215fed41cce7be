"""The options of a pipeline, checked when they are given."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class PipelineOptions:
    """The options of `tfdp.data.pipeline`, which documents them."""

    global_batch_size: int
    seed: int
    shuffle: bool = True
    map_fn: Callable[..., Any] | None = None
    drop_remainder: bool = False
    cache: bool = False
    prefetch: int | Literal["auto"] = "auto"
    memory_bytes: int | None = None
    shuffle_buffer: int = 10_000

    def __post_init__(self) -> None:
        _check_whole("global_batch_size", self.global_batch_size, 1, "256")
        _check_whole("seed", self.seed, 0, "1")
        # The state holds these numbers as JSON, which knows no integers of NumPy.
        for name in ("global_batch_size", "seed"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if self.seed >= 2**63:
            raise ValueError(
                f"`seed` must be below 2**63; received {self.seed}. Use a smaller number."
            )
        for name in ("shuffle", "drop_remainder", "cache"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"`{name}` must be True or False; received {getattr(self, name)!r}. "
                    + ("Use `shuffle_buffer` for a number." if name == "shuffle" else "Use one.")
                )
        if self.map_fn is not None and not callable(self.map_fn):
            raise ValueError(
                f"`map_fn` must be a function of one example; received {self.map_fn!r}. Use "
                "`map_fn=lambda image, label: ...`."
            )
        if self.prefetch != "auto":
            _check_whole("prefetch", self.prefetch, 0, '"auto"')
        if self.memory_bytes is not None:
            _check_whole("memory_bytes", self.memory_bytes, 1, "2**30")
        _check_whole("shuffle_buffer", self.shuffle_buffer, 1, "10_000")


def _check_whole(name: str, value: Any, least: int, example: str) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}; received {value!r}. Use "
            f"`{name}={example}`."
        )
