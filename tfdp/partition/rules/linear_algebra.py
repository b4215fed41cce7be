"""Linear algebra: products of matrices, `tf.einsum`, and decompositions, inverses and solutions.

Products are summed along axes; the others treat each of many matrices by itself.
"""

from collections.abc import Sequence

from tfdp.partition.layouts import PARTIAL, REPLICATED, Layout, Sharded
from tfdp.partition.rules.elementwise import grows
from tfdp.partition.rules.operand_layouts import (
    can_be_summed,
    estimate,
    is_waiting,
    on_aligned,
    on_rows,
    partials,
)
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference.known_products import PRODUCTS, Label, labels_of


@rule(*PRODUCTS, partial=True)
def product(step: Step) -> Results:
    """Keeps a shard of an axis that the result has; over the batch, a partial. Sends nothing then.

    Two operands whose shards do not fit: the smaller one is gathered.
    """
    labels = labels_of(step.op, [tensor.rank for tensor in step.inputs])
    return None if labels is None else contract(step, *labels)


def contract(step: Step, terms: Sequence[Sequence[Label]], result: Sequence[Label]) -> Results:
    """Writes products that are summed along the axes that the result has not.

    Args:
      step: The operation.
      terms: The axes of each operand.
      result: The axes of the result.
    """
    if any(is_waiting(tensor) for tensor in step.inputs):
        return _of_partial(step)
    if any(tensor.rank != len(term) for tensor, term in zip(step.inputs, terms, strict=True)):
        return None
    label = _sharded_label(step, terms)
    if label is None or (label not in result and not can_be_summed(step.op.outputs[0].dtype)):
        return None
    places = {index: term.index(label) for index, term in enumerate(terms) if label in term}
    found = on_rows(step, places, broadcast=places if isinstance(label, int) else ())
    if found is None:
        return None
    layout, operands = found
    if label in result:
        return step.results(step.emit(operands), layout.at(result.index(label)))
    return step.results(partials(step, layout, operands, list(places)), PARTIAL)


def _sharded_label(step: Step, terms: Sequence[Sequence[Label]]) -> Label | None:
    """Returns the sharded axis of the largest sharded operand."""
    labels = [
        (estimate(tensor.shape), term[tensor.layout.axis])
        for tensor, term in zip(step.inputs, terms, strict=True)
        if isinstance(tensor.layout, Sharded)
    ]
    return max(labels, key=lambda each: each[0])[1] if labels else None


def _of_partial(step: Step) -> Results:
    """Multiplies a partial by a replicated operand, if what will be summed does not grow by it."""
    layouts = [tensor.layout for tensor in step.inputs]
    others = [layout for layout in layouts if layout != PARTIAL]
    if layouts.count(PARTIAL) != 1 or any(layout != REPLICATED for layout in others):
        return None
    if grows(step) or step.op.outputs[0].dtype.is_integer:
        return None
    return step.results(step.emit(step.inputs), PARTIAL)


@rule(
    "BandedTriangularSolve",
    "Cholesky",
    "CholeskyGrad",
    "Eig",
    "LogMatrixDeterminant",
    "Lu",
    "MatrixDeterminant",
    "MatrixExponential",
    "MatrixInverse",
    "MatrixLogarithm",
    "MatrixSolve",
    "MatrixSolveLs",
    "MatrixSquareRoot",
    "MatrixTriangularSolve",
    "Qr",
    "SelfAdjointEigV2",
    "Svd",
    "TridiagonalMatMul",
    "TridiagonalSolve",
)
def of_matrices(step: Step) -> Results:
    """Keeps a shard that is not of the matrices' own two axes. Sends nothing.

    A replicated operand is sharded, too, if it has more than one matrix; one that is sharded
    otherwise is gathered.
    """
    found = None if any(tensor.rank == 1 for tensor in step.inputs) else on_aligned(step, 2)
    if found is None:
        return None
    layout, operands = found
    layouts: list[Layout] = [
        REPLICATED if _is_left_out(step, index) else layout for index in range(len(step.op.outputs))
    ]
    return step.results(step.emit(operands), layouts)


def _is_left_out(step: Step, index: int) -> bool:
    """Returns whether an output stays empty, because the operation is told not to compute it."""
    name = {"Svd": "compute_uv", "SelfAdjointEigV2": "compute_v", "Eig": "compute_v"}
    attr = name.get(step.op.type)
    return index > 0 and attr is not None and not step.op.attr(attr)
