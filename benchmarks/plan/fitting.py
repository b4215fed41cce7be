"""The engine's costs, fitted to some cells, and the other cells predicted with them."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import tfdp
from benchmarks.plan.cells import Group, quietest
from tfdp.tools.prediction import ClusterModel, GradientTensor, Plan, Workload, predict
from tfdp.tools.prediction.cluster_model import PAYLOAD_SHARE, EngineCosts

# The hosts are namespaces of a machine with two cores: its ranks share these, as those of one host.
CORES = 2
_LATENCY = 50e-6  # of a bridge of one machine
_NAMES = {
    "": "none",
    'compression=Cast("bfloat16")': "bfloat16",
    "compression=ErrorFeedback(Int8())": "int8",
}
# Where the search begins: an operation, an engine's step, the share of a link's rate, crowding.
_FIRST = (2e-4, 3e-4, 0.9, 1.2)
# Known from loopback: 100 MB between two processes take 180 ms, in which each core sends and
# receives as many (`benchmarks sums --processes 2 --sizes 100MB`).
_CORE_SECONDS_PER_BYTE = 0.9e-9
_STEP, _ROUNDS, _SMALL = 0.05, 15, 0.1


@dataclasses.dataclass(frozen=True)
class Cell:
    """One plan on one cluster, with the steps that were measured.

    Attributes:
      group: The cluster and the compression.
      model: The model.
      topology: The topology.
      seconds: The time of each step.

    >>> Cell(Group("0,1", 50, ""), "dense", "tree", (1.0, 3.0, 2.0)).median
    2.0
    """

    group: Group
    model: str
    topology: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the steps."""
        return statistics.median(self.seconds)


@dataclasses.dataclass(frozen=True)
class Fit:
    """What is fitted.

    Attributes:
      engine: The costs of the engine.
      crowding: How many times as long a forward and backward pass takes beside other ranks as
        alone, where each has a core: likely since they share the machine's caches, in which one
        model's weights and gradients have room and those of several have not. The update goes
        through more than the caches hold, alone as well.
    """

    engine: EngineCosts
    crowding: float


def cells(records: Sequence[Mapping]) -> list[Cell]:
    """Returns the cells of the finished groups, with the steps of each group's quietest round."""
    return [
        Cell(Group(**record["group"]), cell["model"], cell["topology"], tuple(cell["seconds"]))
        for record in quietest(records)
        for cell in record["cells"]
    ]


def read_alone(path: pathlib.Path) -> dict[str, Workload]:
    """Reads the work of one rank alone, by model."""
    found = {}
    for name, values in json.loads(path.read_text()).items():
        tensors = tuple(
            GradientTensor(**{**t, "shape": tuple(t["shape"])}) for t in values["tensors"]
        )
        found[name] = Workload(**{**values, "tensors": tensors})
    return found


def predicted(cell: Cell, alone: Mapping[str, Workload], fit: Fit) -> float:
    """Predicts a cell's step from the data sheet of its links and the model's time alone.

    Args:
      cell: The cell; its times are not looked at.
      alone: The work of a rank alone, by model.
      fit: The costs.
    """
    group = cell.group
    slowdown = max(1.0, group.ranks / CORES)
    engine = fit.engine
    rate = engine.rate_share * PAYLOAD_SHARE * group.rate * 1e6 / 8
    links = tfdp.topology.Links(
        latency_seconds_inside=_LATENCY,
        bytes_per_second_inside=rate,
        latency_seconds_between=_LATENCY,
        bytes_per_second_between=rate,
        operation_seconds=slowdown * engine.operation_seconds,
        engine_step_seconds=_LATENCY + slowdown * engine.step_seconds,
        core_seconds_per_byte=slowdown * engine.core_seconds_per_byte,
    )
    work = alone[cell.model]
    work = dataclasses.replace(
        work,
        forward_seconds=fit.crowding * work.forward_seconds,
        backward_seconds=fit.crowding * work.backward_seconds,
    )
    plan = Plan(cell.topology, compression=_NAMES[group.sending])
    return predict(plan, work, ClusterModel(group.ranks, 1, links, slowdown)).step_seconds


def fitted(chosen: Sequence[Cell], alone: Mapping[str, Workload]) -> Fit:
    """Returns the costs by which the cells are predicted best, by `loss_of`.

    Least squares by Levenberg and Marquardt's steps, on the logarithms of the costs, which are
    above 0.

    Cost: some hundred predictions of each cell.
    """
    values = np.log(_FIRST)

    def deviations(logarithms: np.ndarray) -> np.ndarray:
        return _deviations(fit_of(np.exp(logarithms)), chosen, alone)

    now, damping = deviations(values), 1e-3
    for _ in range(_ROUNDS):
        steps = _STEP * np.eye(len(values))
        slopes = np.stack([(deviations(values + step) - now) / _STEP for step in steps], axis=1)
        weights = 1 / np.hypot(_SMALL, now)
        normal = slopes.T @ (weights[:, None] * slopes)
        change = np.linalg.solve(
            normal + damping * np.eye(len(values)), -slopes.T @ (weights * now)
        )
        tried = values + np.clip(change, -2, 2)
        found = deviations(tried)
        if _loss(found) < _loss(now):
            values, now, damping = tried, found, damping / 3
        else:
            damping *= 5
    return fit_of(np.exp(values))


def loss_of(fit: Fit, chosen: Sequence[Cell], alone: Mapping[str, Workload]) -> float:
    """Returns how far the cells' predictions are off, by the logarithms of their ratios.

    A cell that is off by more than some 10 % weighs less than by its square.
    """
    return _loss(_deviations(fit, chosen, alone))


def _deviations(fit: Fit, chosen: Sequence[Cell], alone: Mapping[str, Workload]) -> np.ndarray:
    return np.log([predicted(cell, alone, fit) / cell.median for cell in chosen])


def _loss(deviations: np.ndarray) -> float:
    return float(np.hypot(_SMALL, deviations).sum())


def held_back(every: Sequence[Cell], alone: Mapping[str, Workload]) -> Iterator[tuple[Cell, float]]:
    """Yields each cell with its prediction by costs that were fitted without it.

    For each model and each number of hosts the costs are fitted to the cells of the other models on
    other numbers of hosts.
    """
    for model in sorted({cell.model for cell in every}):
        for places in sorted({cell.group.places for cell in every}):
            kept = [c for c in every if c.model != model and c.group.places != places]
            judged = [c for c in every if c.model == model and c.group.places == places]
            if kept and judged:
                fit = fitted(kept, alone)
                for cell in judged:
                    yield cell, predicted(cell, alone, fit)


def fit_of(values: Sequence[float] | np.ndarray) -> Fit:
    """Returns what is fitted from its numbers: an operation, a step, the rate's share, crowding.

    >>> fit_of([4e-4, 5e-4, 0.9, 1.5]).engine.rate_share
    0.9
    """
    operation, step, share, crowding = map(float, values)
    return Fit(EngineCosts(operation, step, _CORE_SECONDS_PER_BYTE, share), crowding)
