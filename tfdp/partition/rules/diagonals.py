"""Operations on the diagonals of matrices, which are the last axes: all others are kept."""

from __future__ import annotations

from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.sizes import SizeLike
from tfdp.partition.tensors import Tensor


@rule("MatrixBandPart", "MatrixDiag", "MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3",
      "MatrixDiagV2", "MatrixDiagV3")  # fmt: skip
def of_each_matrix(step: Step) -> Results:
    """Keeps the cut of an axis that is none of the matrices'. Sends nothing."""
    tensor, *others = step.inputs
    if tensor.sharded is None or any(other.layout != REPLICATED for other in others):
        return None
    axes = 1 if step.op.type.startswith("MatrixDiagV") and _is_single(others[0]) else 2
    if step.op.type == "MatrixDiag":
        axes = 1
    return _kept(step, tensor, tensor.sharded, axes, [tensor, *others])


@rule("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def set_diagonal(step: Step) -> Results:
    """Keeps the cut of an axis that is none of the matrices'. Sends nothing.

    Of the matrices or the diagonals, whichever are whole, a part is taken.
    """
    matrices, diagonals, *others = step.inputs
    layout = matrices.sharded or diagonals.sharded
    if layout is None or any(other.layout != REPLICATED for other in others):
        return None
    for tensor in (matrices, diagonals):
        if tensor.rank is None or layout.axis >= tensor.rank:
            return None
        if tensor.dim(layout.axis) != layout.length:
            return None
        if tensor.sharded is None and tensor.layout != REPLICATED:
            return None
    if matrices.rank is None or layout.axis >= matrices.rank - 2:
        return None
    why = "matrices and diagonals are cut otherwise"
    parts = [step.part(tensor, layout, why) for tensor in (matrices, diagonals)]
    outputs = step.emit([*parts, *others])
    return step.results(outputs, layout, [matrices.dims()])


def _kept(step: Step, tensor: Tensor, layout: Sharded, axes: int, inputs: list[Tensor]) -> Results:
    """Writes the operation where the cut is none of the tensor's last `axes` axes."""
    if tensor.rank is None or layout.axis >= tensor.rank - axes:
        return None
    rank = step.op.outputs[0].shape.rank
    if rank is None:
        return None
    ahead = tensor.rank - axes
    sizes: list[SizeLike | None] = [*tensor.dims()[:ahead], *[None] * (rank - ahead)]
    return step.results(step.emit(inputs), layout, [sizes])


def _is_single(diagonals: Tensor) -> bool:
    """Returns whether the numbers of the first and the last diagonal are the same."""
    numbers = diagonals.constant()
    return numbers is not None and len(set(numbers.ravel().tolist())) == 1
