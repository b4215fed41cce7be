"""Moments in a program: a mean, and the mean of the squared distances from it.

Written as they are, they need two sums over the replicas, of which one waits for the other. Told of
each other, both come from one: see `mean_of` in `rules.reductions`.
"""

from collections.abc import Sequence

from tfdp.partition.emit.writer import Output
from tfdp.partition.flattening import Task
from tfdp.partition.tensors import Tensor


class Moments:
    """The mean and the variance of one tensor, while they are written.

    Attributes:
      partial: The replica's partial of both, once it is written.
      variance: The whole variance, once it is known.
    """

    def __init__(self) -> None:
        self.partial: Tensor | None = None
        self.variance: Output | None = None


def find(tasks: Sequence[Task]) -> dict[Task, Moments]:
    """Returns of each mean that has its variance, and of that, the moments that they are.

    They are as `tf.nn.moments` writes them, which has a name for no operation of its own.
    """
    found: dict[Task, Moments] = {}
    variances: set[Task] = set()
    for task in tasks:
        if not _is_mean(task):
            continue
        squares, _ = task.inputs[0]
        if squares.op is None or squares.op.type != "SquaredDifference":
            continue
        one, other = squares.inputs
        for of, (mean, _) in ((one, other), (other, one)):
            if not _is_mean(mean) or mean.inputs[0] != of or mean in variances:
                continue
            if _axes(mean) == _axes(task) is not None:
                found[task] = found.setdefault(mean, Moments())
                variances.add(task)
    return found


def _is_mean(task: Task) -> bool:
    return task.op is not None and task.op.type == "Mean" and bool(task.op.attr("keep_dims"))


def _axes(task: Task) -> bytes | None:
    """Returns the axes of a mean, for comparison; None: they are no constant."""
    (axes, _) = task.inputs[1]
    if axes.op is None or axes.op.type != "Const":
        return None
    value: bytes = axes.op.node.attr["value"].SerializeToString()
    return value
