"""The answers of `tfdp plan`: the curve, the best plans of the largest cluster, what limits it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from tfdp.plan.inputs import Inputs, base_plan, cluster
from tfdp.plan.plan_options import PlanOptions
from tfdp.prediction import (
    Limit,
    Prediction,
    best,
    candidates,
    limits,
    predict,
    ranked,
    ranks_to_fit,
)

_ROUNDS = (10, 100)


@dataclasses.dataclass(frozen=True)
class Answers:
    """What was asked for.

    Attributes:
      inputs: What was planned with.
      curve: For each number of ranks the best plan that trains the same.
      default: For each number of ranks the strategy's defaults; none that cannot be told.
      rows: The plans of the largest number of ranks, the fastest first: of those that train the
        same one for each topology, of the others one for each way to send less.
      limits: What limits the best of them.
      fits_from: The least number of ranks whose memory fits; None: none does, or nobody asked.
      seconds: How long the prediction took.
    """

    inputs: Inputs
    curve: tuple[Prediction, ...]
    default: tuple[Prediction, ...]
    rows: tuple[Prediction, ...]
    limits: tuple[Limit, ...]
    fits_from: int | None
    seconds: float


def answer(options: PlanOptions, inputs: Inputs) -> Answers:
    """Predicts all plans for all numbers of ranks.

    Raises:
      ValueError: A number of ranks does not fill hosts, or the links contradict each other.
    """
    began = time.perf_counter()
    base = base_plan(options)
    same = [name for name in options.compression if name == "none"] or options.compression
    plans = candidates(base, options.topology, compressions=tuple(same), rounds=())
    curve, default = [], []
    for ranks in options.sorted_ranks:
        on = cluster(options, inputs, ranks)
        curve.append(best(ranked(plans, inputs.work, on)))
        plain = predict(base, inputs.work, on)
        default += [plain] if plain else []
    largest = cluster(options, inputs, options.sorted_ranks[-1])
    every = candidates(base, options.topology, compressions=options.compression, rounds=_ROUNDS)
    rows = _first_of_each(ranked(every, inputs.work, largest))
    fits = None
    if options.memory:
        fits = ranks_to_fit(inputs.work, options.memory, options.shard, base.bucket_bytes)
    limiting = limits(curve[-1].plan, inputs.work, largest)
    took = time.perf_counter() - began
    return Answers(inputs, tuple(curve), tuple(default), tuple(rows), tuple(limiting), fits, took)


def _first_of_each(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Returns the fastest of each topology, and of each compression and synchronization."""
    seen: set[tuple[object, ...]] = set()
    kept = []
    for one in predictions:
        plan = one.plan
        sent = (plan.compression, plan.synchronization, plan.every)
        kind = (*sent, plan.topology) if plan.is_exact else sent
        if kind not in seen:
            seen.add(kind)
            kept.append(one)
    return kept
