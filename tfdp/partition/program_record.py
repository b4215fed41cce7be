"""The record of a program that the walk keeps: what is exchanged, and where operations compute."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.sizes import SizeLike, product
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor

# Where an operation computes.
SHARE, WHOLE, AFTER, EVERYWHERE = "share", "whole", "after", "everywhere"

# What takes most of the time of most steps.
PRODUCTS = {
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Conv",
    "Conv2D",
    "Conv2DBackpropFilter",
    "Conv2DBackpropInput",
    "Conv3D",
    "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput",
    "Einsum",
    "MatMul",
    "SparseTensorDenseMatMul",
}


# An error has as many lines of the program that may have asked for what failed.
_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Content:
    """A tensor that travels.

    Attributes:
      node: The name of the operation, as the program's function was written, that gives it.
      source: The name of that operation, or of one before it, in the program of one device.
      kind: Its dtype and the global tensor's sizes, such as "float32[64, 32]".
      size_bytes: The bytes of the global tensor; None where nothing is known of them.
    """

    node: str
    source: str
    kind: str
    size_bytes: SizeLike | None

    @classmethod
    def of(cls, output: Output, shape: Sequence[SizeLike | None] | None = None) -> Content:
        """Returns what is known of a tensor, given what is known of its shape."""
        dtype = output.dtype
        sizes = "?" if shape is None else ", ".join(_named(size) for size in shape)
        elements = None if shape is None else product(shape)
        known = elements is not None and dtype.size > 0  # it is 0 where elements differ in size
        size_bytes = elements * dtype.size if known else None
        source = output.writer.source_of(output)
        return cls(output.node, source, f"{dtype.name}[{sizes}]", size_bytes)

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> Content:
        """Returns what is known of a tensor of the one-device program."""
        return cls.of(tensor.local, tensor.shape)


@dataclasses.dataclass
class Exchanged:
    """One collective of a program.

    Attributes:
      kind: "sum", "gather", "from first"; of variables that are sharded "sum of parts" and "gather
        of parts"; or "update": what replicas exchange in one of their own.
      contents: The tensors that travel together.
      sent: The bytes that a replica sends in an "update", where they are known before.
      operation: The type of the operation that asked for it.
      line: The user's line that made that operation.
      why: What it needed it for.
      function: The function that holds it: the program's own, or one of a branch or a loop.
      node: The name of its call in that function.
      makes_whole: Whether it gives a tensor whole of which each replica has its examples.
      normalization_bytes: The bytes of what plain BatchNormalization asked for.
    """

    kind: str
    contents: Sequence[Content]
    sent: int | None
    operation: str
    line: str
    why: str
    function: str
    node: str
    makes_whole: bool = False
    normalization_bytes: int = 0

    @property
    def tensors(self) -> int:
        """The number of tensors that travel together."""
        return len(self.contents)

    @property
    def size_bytes(self) -> SizeLike | None:
        """The bytes of the global tensors; None where nothing is known of one's."""
        return total_bytes(content.size_bytes for content in self.contents)

    def bytes_sent(self, size: int | None, replicas: int) -> int | None:
        """Returns the bytes that each of so many replicas sends, by a ring; None: not known.

        Args:
          size: The bytes of the global tensors, if they are known.
          replicas: The number of replicas.
        """
        if size is None or self.kind == "update":
            return self.sent
        is_half = self.kind == "gather" or self.kind.endswith("of parts")
        return (1 if is_half else 2) * size * (replicas - 1) // replicas


@dataclasses.dataclass
class Gathered:
    """An operation that every replica computes on replicated tensors, though they were sharded.

    Attributes:
      operation: The type of the operation.
      line: The user's line that made it.
      reason: Why: no rule, or what the rule could not keep.
      gathered: The number of tensors that were gathered for it; others had been before.
      gathered_bytes: Their bytes; None where nothing is known of one's.
      place: Where it is in terms of the user's program: a layer, or a line.
      has_texts: Whether it is about texts.
    """

    operation: str
    line: str
    reason: str
    gathered: int
    gathered_bytes: SizeLike | None = None
    place: str = ""
    has_texts: bool = False

    @classmethod
    def of(cls, op: SourceOp, reason: str, inputs: Sequence[Tensor]) -> Gathered:
        """Returns the record of an operation, before its sharded inputs are gathered."""
        unique = {id(tensor): tensor for tensor in inputs}.values()
        missing = [tensor for tensor in unique if tensor.sharded and tensor.replicated is None]
        sizes = [Content.of_tensor(tensor).size_bytes for tensor in missing]
        has_texts = any(each.dtype == tf.string for each in (*op.inputs, *op.outputs))
        return cls(
            *(op.type, op.line(), reason, len(missing), total_bytes(sizes)), op.place(), has_texts
        )


@dataclasses.dataclass(frozen=True)
class Computed:
    """An operation of the one-device program, as the program of a replica has it.

    Attributes:
      operation: Its type.
      place: `SHARE`: each replica computes on what it alone holds; `WHOLE`: all compute the same,
        of tensors that were sharded; `AFTER`: of what was computed so; `EVERYWHERE`: of what all
        have.
      cause: What was computed on the gathered batch, of `WHOLE` this one, of `AFTER` one before it.
    """

    operation: str
    place: str
    cause: Gathered | None = None


class ProgramRecord:
    """What one program exchanges, and what it computes whole.

    Args:
      num_replicas: The number of replicas.

    Attributes:
      exchanged: The collectives, in the order in which they begin.
      whole: The operations that are computed on the gathered batch.
      computed: All operations that something was written for, in the order of the program.
    """

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self.exchanged: list[Exchanged] = []
        self.whole: list[Gathered] = []
        self.computed: list[Computed] = []

    def wanting(self, message: str) -> list[str]:
        """Returns what may have asked for the collective that an error's message names.

        >>> report = ProgramRecord(2)
        >>> contents = [Content("x", "x", "uint8[4]", 4)]
        >>> where = ("Unique", "train.py:3, in step", "", "program", "call")
        >>> report.exchanged.append(Exchanged("gather", contents, 4, *where))
        >>> report.wanting("no datatype uint8 [[{{node CollectiveGatherV2}}]]")
        ['gather of uint8[4] for Unique at train.py:3, in step']
        >>> report.wanting("no datatype uint8 [[{{node CollectiveReduceV2}}]]")
        []
        """
        refused = re.search(r"datatype (?:DT_)?(\w+)", message)
        dtype = refused[1].lower() if refused else ""
        found = []
        for each in self.exchanged:
            kinds = [content.kind for content in each.contents]
            primitive = "Gather" if each.kind == "gather" else "Reduce"
            if primitive in message and any(kind.startswith(dtype) for kind in kinds):
                what = kinds[0] if len(kinds) == 1 else f"{len(kinds)} tensors"
                found.append(f"{each.kind} of {what} for {each.operation} at {each.line}")
        more = len(found) - _MOST_NAMED
        return [*found[:_MOST_NAMED], *([f"or one of {more} more"] if more > 0 else [])]

    def mark(self) -> tuple[int, ...]:
        """Returns a place to go back to."""
        return len(self.exchanged), len(self.whole), len(self.computed)

    def go_back(self, mark: Sequence[int], kept: Collection[str] = ()) -> None:
        """Forgets what was recorded since a mark, but for collectives of the functions `kept`.

        >>> report = ProgramRecord(2)
        >>> mark = report.mark()
        >>> report.whole.append(Gathered("Unique", "train.py:1, in step", "it has no rule", 1))
        >>> report.go_back(mark)
        >>> report.whole
        []
        """
        records: Sequence[list[Any]] = (self.exchanged, self.whole, self.computed)
        hoisted = [each for each in self.exchanged[mark[0] :] if each.function in kept]
        for record, length in zip(records, mark, strict=True):
            del record[length:]
        self.exchanged += hoisted


def total_bytes(sizes: Any) -> SizeLike | None:
    """Returns the sum of sizes; None if one of them is None.

    >>> total_bytes([4, 8]), total_bytes([4, None]), total_bytes([])
    (12, None, 0)
    """
    total: Any = 0
    for size in sizes:
        if size is None:
            return None
        total = total + size
    return total


def _named(size: SizeLike | None) -> str:
    return "?" if size is None else str(size)
