"""Decompositions, inverses, solutions and transforms of many matrices, each by itself."""

from tfdp.partition.layouts import REPLICATED, Layout
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.rowwise import on_aligned


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
    """Keeps a cut that is not of the matrices' own two axes. Sends nothing.

    A whole operand is cut, too, if it has more than one matrix; one that is cut otherwise is
    gathered.
    """
    found = None if any(tensor.rank == 1 for tensor in step.inputs) else on_aligned(step, 2)
    if found is None:
        return None
    cut, operands = found
    layouts: list[Layout] = [
        REPLICATED if _is_left_out(step, index) else cut for index in range(len(step.op.outputs))
    ]
    return step.results(step.emit(operands), layouts)


def _is_left_out(step: Step, index: int) -> bool:
    """Returns whether an output stays empty, because the operation is told not to compute it."""
    name = {"Svd": "compute_uv", "SelfAdjointEigV2": "compute_v", "Eig": "compute_v"}
    attr = name.get(step.op.type)
    return index > 0 and attr is not None and not step.op.attr(attr)
