"""The registry of rules: for each type of operation what a replica writes in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfdp.partition.emit.writer import Output, Writer, unique_name
from tfdp.partition.layouts import LOCAL, Layout, Sharded
from tfdp.partition.moment_patterns import Moments
from tfdp.partition.program_record import Gathered
from tfdp.partition.shape_inference import known_values
from tfdp.partition.shape_inference.known_shapes import Shape
from tfdp.partition.sizes import SizeLike
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor, static_shape
from tfdp.partition.variable_redistribute import VariableRedistribution

if TYPE_CHECKING:
    from tfdp.partition.propagation import Propagation

# What a rule returns: the operation's outputs, or None where it cannot keep the layouts: then the
# operation is computed on the gathered batch.
Results: TypeAlias = Sequence[Tensor] | None

# Of these TensorFlow's own kernels for CPUs lack variants, such as gradients of convolutions in
# groups, for which Keras has XLA compile them.
_COMPILED = ("Conv2D", "Conv3D")


@dataclasses.dataclass(frozen=True)
class OperationRule:
    """What is done with one type of operation.

    Attributes:
      write: Writes it, given a `Step`.
      always: Whether it is asked where all inputs are replicated, too. Other operations are
        written as they are there.
      partial: Whether it is given partials. Otherwise they are summed before.
      apart: Whether its inputs have nothing to do with each other, such as a branch's. Of others
        weights that are sharded are gathered beside rows of a batch.
    """

    write: Callable[[Step], Results]
    always: bool = False
    partial: bool = False
    apart: bool = False


RULES: dict[str, OperationRule] = {}


def rule(
    *types: str, always: bool = False, partial: bool = False, apart: bool = False
) -> Callable[[Callable[[Step], Results]], Callable[[Step], Results]]:
    """Registers the decorated function as the rule of types of operations.

    Its docstring says which layouts go in and come out, and what is sent.

    Args:
      types: TensorFlow's names of the types.
      always: See `OperationRule`.
      partial: See `OperationRule`.
      apart: See `OperationRule`.
    """

    def register(write: Callable[[Step], Results]) -> Callable[[Step], Results]:
        for type_ in types:
            if type_ in RULES:
                module = RULES[type_].write.__module__
                raise ValueError(f"{type_} has a rule already, in {module}: change that one")
            RULES[type_] = OperationRule(write, always, partial, apart)
        return write

    return register


class Step(VariableRedistribution):
    """One operation of the source, while a rule writes it.

    Attributes:
      walk: The walk, for rules of operations that hold functions.
      source: The operation.
      inputs: Its inputs.
      moments: What it is one of, if it is; see `moment_patterns`.
      is_whole: Whether every replica computes it on replicated tensors, though some were sharded.
      is_after: Whether every replica computes it alike, of what was computed on the gathered batch.
      cause: What that was, or the operation itself.
    """

    op: SourceOp

    def __init__(
        self,
        walk: Propagation,
        op: SourceOp,
        inputs: Sequence[Tensor],
        moments: Moments | None = None,
    ) -> None:
        super().__init__(walk.program, walk.writer)
        self.walk, self.op, self.inputs, self.moments = walk, op, list(inputs), moments
        self.is_whole = self.is_after = False
        self.cause: Gathered | None = None

    def note_gathered(self, reason: str) -> None:
        """Records, before inputs are gathered, that every replica computes the operation on all.

        Args:
          reason: Why it must.
        """
        layouts = [tensor.sharded for tensor in self.inputs if tensor.sharded is not None]
        # On one device all have weights, too.
        self.is_whole = any(not layout.is_fixed for layout in layouts)
        if self.is_whole:
            self.cause = Gathered.of(self.op, reason, self.inputs)
            self.program.report.whole.append(self.cause)

    def emit(self, inputs: Sequence[Output | Tensor], **attrs: Any) -> list[Output]:
        """Writes the operation with these inputs; a `Tensor` stands for what the replica holds.

        Args:
          inputs: The inputs.
          attrs: Attributes that differ from the operation's own.
        """
        outputs = [each.local if isinstance(each, Tensor) else each for each in inputs]
        if self.op.graph.is_compiled and self.op.type.startswith(_COMPILED):
            return self._emit_compiled(outputs, attrs)
        return self.writer.copy(self.op.node, outputs, attrs)

    def _emit_compiled(self, inputs: Sequence[Output], attrs: Mapping[str, Any]) -> list[Output]:
        """Writes a function that XLA compiles, of the operation alone, and its call."""
        inner = Writer(unique_name("compiled"))
        arguments = [inner.argument(f"input_{at}", each.dtype) for at, each in enumerate(inputs)]
        function = inner.finish(inner.copy(self.op.node, arguments, attrs))
        function.signature.is_stateful = False
        self.program.functions.append(function)
        return self.writer.call_compiled(function, inputs)

    def results(
        self,
        outputs: Sequence[Output],
        layout: Layout | Sequence[Layout],
        shapes: Sequence[Sequence[SizeLike | None] | None] | None = None,
        entries: Sequence[np.ndarray | None] | None = None,
    ) -> list[Tensor]:
        """Returns the operation's outputs.

        Args:
          outputs: What the replica has computed.
          layout: The layout of all, or of each.
          shapes: The sizes of the global tensors, where they do not follow from the inputs'.
          entries: Their values, where the rule knows them.
        """
        layouts = list(layout) if isinstance(layout, Sequence) else [layout] * len(outputs)
        inferred = self.shapes()
        found = []
        for index, (output, own) in enumerate(zip(outputs, layouts, strict=True)):
            shape = static_shape(self.op.outputs[index].shape)
            said = shapes[index] if shapes is not None else inferred[index]
            if own != LOCAL and said is not None:
                shape = _merged(shape, said)
            if isinstance(own, Sharded):
                self.program.latest_layouts[own.batch, own.length] = own
                if shape is not None:
                    shape[own.axis] = own.length
            found.append(Tensor(output, own, shape, entries[index] if entries else None))
        return found

    def shapes(self) -> Sequence[Shape | None]:
        """Returns what follows for the shapes of the whole outputs from those of the inputs."""
        return known_values.shapes(self.op, self.inputs) or [None] * len(self.op.outputs)

    def shape_with(self, vector: Tensor, axis: int, count: Output) -> Output:
        """Returns a shape vector of the global tensor, with another number for one axis."""
        write, dtype = self.write, vector.dtype
        sizes = vector.sizes()
        known = sizes is not None and all(
            isinstance(size, int) for at, size in enumerate(sizes) if at != axis
        )
        whole, rank = self.replicated(vector), _length(vector)
        values: list[Any] = [
            sizes[at] if known and sizes is not None else write.element(whole, at)
            for at in range(rank)
        ]
        values[axis] = count
        return write.pack(values, dtype)


def _length(vector: Tensor) -> int:
    assert vector.shape is not None and isinstance(vector.shape[0], int)
    return vector.shape[0]


def _merged(
    shape: list[SizeLike | None] | None, said: Sequence[SizeLike | None]
) -> list[SizeLike | None]:
    """Returns what the trace and a rule know together; numbers that the trace knows come first."""
    if shape is None:
        return list(said)
    return [b if a is None else a for a, b in zip(shape, said, strict=True)]
