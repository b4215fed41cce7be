"""The layouts of branches' results, and of a loop's variables in every iteration."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Layout, Listed, Sharded, join
from tfdp.partition.program_record import Gathered
from tfdp.partition.rules.registry import Step
from tfdp.partition.rules.resharding import sharding_of
from tfdp.partition.source import SourceTensor
from tfdp.partition.tensors import LoopVariable, Tensor, static_shape


class Carried(LoopVariable):
    """What is known of a loop's variable in every round.

    Args:
      layout: Its layout.
      shape: Its sizes, as far as they are known.
      entries: Its value, as far as it is known.
      is_whole: Whether it must be whole in each round.
      cause: The operation for which it was gathered.
    """

    def __init__(
        self,
        layout: Layout,
        shape: list[Any] | None,
        entries: np.ndarray | None,
        is_whole: bool = False,
        cause: Gathered | None = None,
    ) -> None:
        self.layout, self.shape, self.entries, self.is_whole = layout, shape, entries, is_whole
        self.cause = cause

    @classmethod
    def of(cls, tensor: Tensor, inside: SourceTensor) -> Carried:
        """Returns what is known before the first round."""
        shape = static_shape(inside.shape)
        if shape is None:
            shape = tensor.shape
        elif tensor.shape is not None:
            shape = [b if a is None else a for a, b in zip(shape, tensor.shape, strict=True)]
        return cls(tensor.layout, shape, tensor.entries)

    def joined(self, step: Step, before: Tensor, after: Tensor) -> Carried:
        """Returns what is known where a round may have given another tensor.

        Args:
          step: The loop.
          before: What it begins with.
          after: What the round has given.
        """
        own = self.tensor(after.local)
        empty = isinstance(self.layout, Listed) and self.layout.is_empty
        entries = after.entries if empty else common_entries(step, [own, after])
        if self.entries is None and not empty:
            entries = None
        shape = self.shape
        if shape is not None and after.shape is not None and len(shape) == len(after.shape):
            shape = [a if _is_same(a, b) else None for a, b in zip(shape, after.shape, strict=True)]
        else:
            shape = None
        layout = joined_layout([own, after])
        is_whole = self.is_whole or (self.layout == PARTIAL and self.is_summed)
        if is_whole and layout == PARTIAL:
            layout = REPLICATED
        cause = None
        if is_sharded(before) and sharding_of(step.program, step.writer, shape) is None:
            cause = cause_of(step, [before], layout)
        return Carried(layout, shape, entries, is_whole, cause)

    def tensor(self, output: Output) -> Tensor:
        shape = None if self.shape is None else list(self.shape)
        if isinstance(self.layout, Sharded) and shape is not None:
            shape[self.layout.axis] = self.layout.length
        tensor = Tensor(output, self.layout, shape, self.entries)
        tensor.variables = frozenset([] if self.is_whole else [self])
        tensor.cause = self.cause
        return tensor

    def equals(self, other: Carried) -> bool:
        """Returns whether the same is known."""
        same_entries = (self.entries is None and other.entries is None) or (
            self.entries is not None
            and other.entries is not None
            and self.entries.shape == other.entries.shape
            and bool((self.entries == other.entries).all())
        )
        return self.layout == other.layout and self.shape == other.shape and same_entries


def cause_of(step: Step, tensors: Sequence[Tensor], layout: Layout) -> Gathered | None:
    """Returns the operation for which a result of a branch or a loop was gathered.

    Args:
      step: The operation.
      tensors: What the branches give, or what the loop begins with.
      layout: The layout of what is given.
    """
    if layout != REPLICATED:
        return None
    sharded = [each for each in tensors if is_sharded(each)]
    if sharded:
        return Gathered.of(step.op, "what it gives may have another size or layout", sharded)
    return next((each.cause for each in tensors if each.cause is not None), None)


def is_sharded(tensor: Tensor) -> bool:
    """Returns whether each replica has its rows of a tensor."""
    return tensor.sharded is not None and not tensor.sharded.is_fixed


def joined_layout(tensors: Sequence[Tensor]) -> Layout:
    """Returns the layout that can hold any of some tensors: sharded only if sizes are known."""
    layout = functools.reduce(join, [tensor.layout for tensor in tensors])
    if isinstance(layout, Sharded):
        for tensor in tensors:
            if tensor.rank is None or tensor.rank != tensors[0].rank or tensor.rank <= layout.axis:
                return REPLICATED
            if tensor.layout != layout and tensor.dim(layout.axis) != layout.length:
                return REPLICATED
    return layout


def _is_empty(tensor: Tensor) -> bool:
    return isinstance(tensor.layout, Listed) and tensor.layout.is_empty


def _is_same(a: Any, b: Any) -> bool:
    return a is not None and a == b


def common_shape(step: Step, tensors: Sequence[Tensor]) -> list[Any] | None:
    """Returns the sizes that all of some tensors have, and that the function around can compute."""
    shapes = [tensor.shape for tensor in tensors]
    if any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
        return None
    return [
        sizes[0]
        if all(_is_same(sizes[0], size) for size in sizes)
        and step.program.knows(step.writer, sizes[0])
        else None
        for sizes in zip(*(shape for shape in shapes if shape is not None), strict=True)
    ]


def common_entries(step: Step, tensors: Sequence[Tensor]) -> np.ndarray | None:
    """Returns the value that all of some tensors have, if the function around can compute it.

    Of lists and optionals it is that of their elements, if they have any.
    """
    tensors = [each for each in tensors if not _is_empty(each)] or tensors
    first = tensors[0].entries
    for tensor in tensors:
        own = tensor.entries
        if own is None or first is None or own.shape != first.shape or (own != first).any():
            return None
    if first is None or not all(step.program.knows(step.writer, e) for e in first.ravel()):
        return None
    return first
