"""The options of a pipeline: checked when they are given, and against the number of examples.

The limit of memory decides how many batches are read and mapped beforehand.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from tfdp.data.mapping import check_dense
from tfdp.data.sources.abstract import AbstractIndexedSource, AbstractSource, AbstractStreamSource


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


def checked_length(source: AbstractSource, options: PipelineOptions) -> int | None:
    """Returns the number of examples; None: only reading them tells.

    Raises:
      ValueError: There is none, or too few to fill a batch; the shapes of examples vary; the
        examples do not fit into `memory_bytes`.

    >>> from tfdp.data.sources import ArraySource
    >>> checked_length(ArraySource([1, 2, 3]), PipelineOptions(global_batch_size=2, seed=1))
    3
    """
    if options.map_fn is None:
        check_dense(source.element_spec, source.describe())
    if isinstance(source, AbstractIndexedSource):
        length: int | None = len(source)
    else:
        assert isinstance(source, AbstractStreamSource)
        length = source.num_examples
        held = options.shuffle_buffer if options.shuffle else 0
        if options.cache:
            held = max(held, length or 0)
        elif length is not None:
            held = min(held, length)
        check_buffer(held, source.element_spec, options.memory_bytes)
    if length == 0:
        raise empty(source.describe())
    if length is not None and options.drop_remainder and length < options.global_batch_size:
        raise ValueError(
            f"With `drop_remainder` the source must fill a batch of {options.global_batch_size}; "
            f"received {length} examples ({source.describe()}). Use a `global_batch_size` of at "
            f"most {length}, or `drop_remainder=False`."
        )
    return length


def empty(described: str) -> ValueError:
    """Returns the error for a source without examples; `described` is its `describe()`.

    >>> print(empty("arrays of shape [0]"))
    `source` must hold at least one example; received arrays of shape [0], which is empty. ...
    """
    return ValueError(
        f"`source` must hold at least one example; received {described}, which is empty. "
        "Check what made it."
    )


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


def example_bytes(element_spec: Any) -> int | None:
    """Returns the bytes of one example; None where shapes vary, and for strings.

    >>> example_bytes((tf.TensorSpec([28, 28], tf.uint8), tf.TensorSpec([], tf.int32)))
    788
    """
    total = 0
    for spec in tf.nest.flatten(element_spec):
        fixed = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        if not fixed or spec.dtype in (tf.string, tf.variant, tf.resource):
            return None
        total += spec.shape.num_elements() * spec.dtype.size
    return total


def batches_within(memory_bytes: int, batch_bytes: int) -> tuple[int, int]:
    """Returns the most batches that may be made at once, and the most that may wait for the steps.

    Batches in the making and waiting batches share the memory, half each; one of each must be
    possible.

    Args:
      memory_bytes: The bytes for both.
      batch_bytes: The bytes of one process' part of a batch.

    >>> batches_within(10_000_000, 1_000_000)[1]
    5
    """
    half = max(1, memory_bytes // 2 // max(1, batch_bytes))
    return min(half, os.cpu_count() or 1), half


def check_buffer(buffer: int, element_spec: Any, memory_bytes: int | None) -> None:
    """Raises ValueError if a buffer of so many examples takes more than `memory_bytes`."""
    size = example_bytes(element_spec)
    if memory_bytes is None or size is None or buffer * size <= memory_bytes:
        return
    raise ValueError(
        f"The examples that `shuffle` or `cache` holds must fit into `memory_bytes`, but {buffer} "
        f"of {size} bytes take {buffer * size} bytes and it is {memory_bytes}. Use "
        f"`shuffle_buffer={max(1, memory_bytes // size)}` and no `cache`, or "
        f"`memory_bytes={buffer * size}`."
    )
