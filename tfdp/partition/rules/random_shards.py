"""What rules of draws have in common: the cut that a shape asks for, and parts of what is drawn."""

from collections.abc import Sequence
from typing import Any

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.rules.registry import Results, Step
from tfdp.partition.sizes import Size, SizeLike, divided
from tfdp.partition.source import definition
from tfdp.partition.tensors import Tensor

WHY = "its numbers are drawn in the order of the whole"


def asked_for(step: Step) -> tuple[list[SizeLike | None], Sharded | None]:
    """Returns the sizes that the shape vector asks for, and the cut of the one batch among them.

    Any cut is right. A number is taken for a batch only along axis 0, where the program fixes the
    batch's length. The cut is None where there is no batch, or more than one. There are no sizes
    where nothing is known of the vector.
    """
    place = _place_of_shape(step)
    sizes = None if place is None else step.inputs[place].sizes()
    shape: list[SizeLike | None] = [size if _is_known(step, size) else None for size in sizes or ()]
    found: list[Sharded] = []
    for axis, size in enumerate(shape):
        for batch in step.program.places:
            if isinstance(size, int):
                inner: Any = 1 if axis == 0 and size == batch.length else None
            else:
                inner = divided(size, batch.length) if isinstance(batch.length, Size) else None
            if inner is not None and (isinstance(inner, Size) or inner > 0):
                found.append(Sharded(axis, batch, inner))
    return shape, found[0] if len(found) == 1 else None


def _is_known(step: Step, size: Any) -> bool:
    return isinstance(size, (int, Size)) and step.program.knows(step.writer, size)


def _place_of_shape(step: Step) -> int | None:
    """Returns which input the shape is; None where the operation has none."""
    names = [arg.name for arg in definition(step.op.type).input_arg]
    return names.index("shape") if "shape" in names else None


def drawn_whole(step: Step) -> Results:
    """Draws all on every replica, which keeps its part of the cut that the shape asks for."""
    shape, layout = asked_for(step)
    return sliced(step, emitted_whole(step), shape or None, layout)


def emitted_whole(step: Step) -> Output:
    """Writes a draw on every replica, with whole inputs."""
    step.require_sums(step.inputs)
    step.note_whole(WHY)
    return step.emit([step.whole(tensor, WHY) for tensor in step.inputs])[0]


def sliced(
    step: Step, whole: Output, shape: Sequence[SizeLike | None] | None, layout: Sharded | None
) -> Results:
    """Returns the replica's part of a result that each replica has whole."""
    if layout is None or shape is None:
        return step.results([whole], REPLICATED, [shape])
    own = step.part(Tensor(whole, REPLICATED, shape), layout)
    results = step.results([own], layout, [shape])
    results[0].whole = whole
    return results
