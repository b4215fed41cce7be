"""Products that are summed along axes: of matrices, and what `tf.einsum` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.elementwise import aligned, grows
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.rowwise import can_be_summed, estimate, is_waiting, on_rows, partials
from tfdp.partition.sizes import SizeLike

# An axis of an operand by the name that it has in an equation, such as "bij,bjk->bik". Axes by
# numbers may be broadcast; they are counted from the right.
Label: TypeAlias = str | int


@rule("MatMul", partial=True)
def matmul(step: Step) -> Results:
    """Keeps rows of either operand; over the batch, a summand. Sends nothing then.

    Two operands whose cuts do not fit: the smaller one is gathered.
    """
    a = "ki" if step.op.attr("transpose_a") else "ik"
    b = "jk" if step.op.attr("transpose_b") else "kj"
    return contract(step, [list(a), list(b)], list("ij"))


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", partial=True)
def batch_matmul(step: Step) -> Results:
    """Keeps a cut of the matrices, or of either operand's rows; over the batch, a summand.

    Sends nothing then. Two operands whose cuts do not fit: the smaller one is gathered.
    """
    a, b = step.inputs
    if a.rank is None or b.rank is None:
        return None
    matrices = [list(range(2 - rank, 0)) for rank in (a.rank, b.rank)]
    rows = [
        list("ki" if step.op.attr("adj_x") else "ik"),
        list("jk" if step.op.attr("adj_y") else "kj"),
    ]
    result = [*max(matrices, key=len), *"ij"]
    return contract(step, [[*matrices[0], *rows[0]], [*matrices[1], *rows[1]]], result)


@rule("Einsum", partial=True)
def einsum(step: Step) -> Results:
    """Keeps a cut of an axis that the result has; over the batch, a summand. Sends nothing then.

    Two operands whose cuts do not fit: the smaller one is gathered.
    """
    equation = step.op.attr("equation").decode().replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(step.inputs):
        return None
    labels, dots = [], 0
    for term, tensor in zip(terms, step.inputs, strict=True):
        if tensor.rank is None:
            return None
        own = tensor.rank - len(term.replace("...", "")) if "..." in term else 0
        dots = max(dots, own)
        labels.append(_spelled(term, own))
    result = _spelled(right, dots)
    if any(len(set(term)) < len(term) for term in [*labels, result]):
        return None
    return contract(step, labels, result)


@rule("Cross")
def cross(step: Step) -> Results:
    """Keeps the cut of vectors. Sends nothing."""
    ranks = {tensor.rank for tensor in step.inputs}
    if len(ranks) != 1 or None in ranks:
        return None
    (rank,) = ranks
    if any(each.sharded is not None and each.sharded.axis + 1 == rank for each in step.inputs):
        return None
    return aligned(step)


def contract(step: Step, terms: Sequence[Sequence[Label]], result: Sequence[Label]) -> Results:
    """Writes products that are summed along the axes that the result has not.

    Args:
      step: The operation.
      terms: The axes of each operand.
      result: The axes of the result.
    """
    if any(is_waiting(tensor) for tensor in step.inputs):
        return _of_partial(step, terms, result)
    if any(tensor.rank != len(term) for tensor, term in zip(step.inputs, terms, strict=True)):
        return None
    label = _cut_label(step, terms)
    if label is None or (label not in result and not can_be_summed(step.op.outputs[0].dtype)):
        return None
    places = {index: term.index(label) for index, term in enumerate(terms) if label in term}
    found = on_rows(step, places, broadcast=isinstance(label, int))
    if found is None:
        return None
    cut, operands = found
    shape = _shape(step, terms, result)
    if label in result:
        return step.results(step.emit(operands), cut.at(result.index(label)), [shape])
    return step.results(partials(step, cut, operands, list(places)), PARTIAL, [shape])


def _cut_label(step: Step, terms: Sequence[Sequence[Label]]) -> Label | None:
    """Returns the axis along which the largest sharded operand is cut."""
    labels = [
        (estimate(tensor.shape), term[tensor.layout.axis])
        for tensor, term in zip(step.inputs, terms, strict=True)
        if isinstance(tensor.layout, Sharded)
    ]
    return max(labels, key=lambda each: each[0])[1] if labels else None


def _of_partial(step: Step, terms: Sequence[Sequence[Label]], result: Sequence[Label]) -> Results:
    """Multiplies a summand by a whole operand, if what will be summed does not grow by it."""
    layouts = [tensor.layout for tensor in step.inputs]
    others = [layout for layout in layouts if layout != PARTIAL]
    if layouts.count(PARTIAL) != 1 or any(layout != REPLICATED for layout in others):
        return None
    if grows(step) or step.op.outputs[0].dtype.is_integer:
        return None
    return step.results(step.emit(step.inputs), PARTIAL, [_shape(step, terms, result)])


def _shape(
    step: Step, terms: Sequence[Sequence[Label]], result: Sequence[Label]
) -> list[SizeLike | None] | None:
    """Returns what is known of the result's shape."""
    sizes: dict[Label, set[SizeLike]] = {}
    for tensor, term in zip(step.inputs, terms, strict=True):
        if tensor.rank != len(term):
            return None
        for axis, label in enumerate(term):
            sizes.setdefault(label, set()).add(tensor.dim(axis))
    shape: list[SizeLike | None] = []
    for label in result:
        found = sizes.get(label, set())
        others = found - {1}
        shape.append(None if len(others) > 1 or not found else others.pop() if others else 1)
    return shape


def _spelled(term: str, dots: int) -> list[Label]:
    """Returns the axes of one operand of an equation, its dots standing for so many."""
    before, ellipsis, after = term.partition("...")
    return [*before, *(range(-dots, 0) if ellipsis else ()), *after]
