"""The axes and the sizes of products that are summed along axes: of matrices, and `tf.einsum`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from tfdp.partition.shape_inference.known_shapes import Found, broadcast_sizes, shapes_of
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor

# An axis of an operand by the name that it has in an equation, such as "bij,bjk->bik". Axes by
# numbers may be broadcast; they are counted from the right.
Label: TypeAlias = str | int

PRODUCTS = ["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul"]


@shapes_of(*PRODUCTS)
def _products(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    labels = labels_of(op, [tensor.rank for tensor in inputs])
    if labels is None:
        return None
    terms, result = labels
    if any(tensor.rank != len(term) for tensor, term in zip(inputs, terms, strict=True)):
        return None
    sizes: dict[Label, set[Any]] = {label: set() for label in result}
    for tensor, term in zip(inputs, terms, strict=True):
        for size, label in zip(tensor.dims(), term, strict=True):
            sizes.setdefault(label, set()).add(size)
    return [[broadcast_sizes(sizes[label]) if sizes[label] else None for label in result]]


def labels_of(
    op: SourceOp, ranks: Sequence[int | None]
) -> tuple[Sequence[Sequence[Label]], Sequence[Label]] | None:
    """Returns the axes of each operand of a product, and those of the result.

    None: they are not known, or an operand has an axis twice.
    """
    known = [rank for rank in ([2, 2] if op.type == "MatMul" else ranks) if rank is not None]
    if len(known) < len(ranks):
        return None
    if op.type == "Einsum":
        return _of_equation(op.attr("equation").decode().replace(" ", ""), known)
    rows = [
        "ki" if op.attr("transpose_a") or op.attr("adj_x") else "ik",
        "jk" if op.attr("transpose_b") or op.attr("adj_y") else "kj",
    ]
    matrices = [range(2 - rank, 0) for rank in known]
    terms = [[*many, *each] for many, each in zip(matrices, rows, strict=True)]
    return terms, [*max(matrices, key=len), *"ij"]


def _of_equation(
    equation: str, ranks: Sequence[int]
) -> tuple[Sequence[Sequence[Label]], Sequence[Label]] | None:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(ranks):
        return None
    dots = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    found = [_spelled(term, number) for term, number in zip(terms, dots, strict=True)]
    result = _spelled(right, max(dots))
    if any(len(set(term)) < len(term) for term in [*found, result]):
        return None
    return found, result


def _spelled(term: str, dots: int) -> list[Label]:
    """Returns the axes of one operand of an equation, its dots standing for so many."""
    before, ellipsis, after = term.partition("...")
    return [*before, *(range(-dots, 0) if ellipsis else ()), *after]
