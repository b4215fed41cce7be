"""Decompositions, inverses, solutions and transforms of many matrices, each by itself."""

from __future__ import annotations

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import REPLICATED, Layout
from tfdp.partition.rules.elementwise import dominant, operand
from tfdp.partition.rules.registry import Results, Step, rule

# Transforms, by the number of axes that they mix, with the lengths of these as a second operand.
TRANSFORMS = {
    **dict.fromkeys(("BatchFFT", "BatchIFFT", "FFT", "IFFT", "IRFFT", "RFFT"), 1),
    **dict.fromkeys(("BatchFFT2D", "BatchIFFT2D", "FFT2D", "IFFT2D", "IRFFT2D", "RFFT2D"), 2),
    **dict.fromkeys(("BatchFFT3D", "BatchIFFT3D", "FFT3D", "IFFT3D", "IRFFT3D", "RFFT3D"), 3),
}

# Operations whose result has the shape of their last operand.
_LIKE_LAST = (
    *("Cholesky", "CholeskyGrad", "MatrixExponential", "MatrixInverse", "MatrixLogarithm"),
    *("MatrixSolve", "MatrixSquareRoot", "TridiagonalMatMul", "TridiagonalSolve"),
)


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
    ranks = [tensor.rank for tensor in step.inputs]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks) or 1 in known:
        return None
    rank = max(known)
    cut = dominant(step.inputs, rank)
    if cut is None or cut.axis + 2 >= rank:
        return None
    operands: list[Output] = []
    for tensor in step.inputs:
        own = operand(step, tensor, cut, rank)
        if own is None:
            return None
        operands.append(own)
    layouts: list[Layout] = [
        REPLICATED if _is_left_out(step, index) else cut for index in range(len(step.op.outputs))
    ]
    shapes = [step.inputs[-1].shape] if step.op.type in _LIKE_LAST else None
    return step.results(step.emit(operands), layouts, shapes)


@rule(*TRANSFORMS)
def transform(step: Step) -> Results:
    """Keeps a cut of axes that are not mixed. Sends nothing."""
    tensor, *lengths = step.inputs
    cut = tensor.sharded
    if cut is None or tensor.rank is None or cut.axis + TRANSFORMS[step.op.type] >= tensor.rank:
        return None
    others = [step.whole(each) for each in lengths]
    shapes = None if "RFFT" in step.op.type else [tensor.shape]
    return step.results(step.emit([tensor, *others]), cut, shapes)


def _is_left_out(step: Step, index: int) -> bool:
    """Returns whether an output stays empty, because the operation is told not to compute it."""
    name = {"Svd": "compute_uv", "SelfAdjointEigV2": "compute_v", "Eig": "compute_v"}
    attr = name.get(step.op.type)
    return index > 0 and attr is not None and not step.op.attr(attr)
