"""The answers of `tfdp plan`: the curve, the best plans of the largest cluster, what limits it."""

import dataclasses
import time
from collections.abc import Sequence

from tfdp.tools.plan.plan_inputs import PlanInputs, cluster
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.tools.prediction import (
    Limit,
    Memory,
    Plan,
    Prediction,
    Workload,
    candidates,
    limits,
    memory_of,
    predict,
    ranked,
    ranks_to_fit,
)
from tfdp.tools.prediction.sending import COMPRESSIONS


@dataclasses.dataclass(frozen=True)
class Fits:
    """The numbers of ranks on which a rank's memory suffices.

    Attributes:
      everything: The number from which on all of a rank's bytes fit; None: there is none.
      alone: Whether they fit on one rank, which sends nothing.
      state: The number from which on the optimizer's state fits by itself; None: there is none.
    """

    everything: int | None
    alone: bool
    state: int | None


@dataclasses.dataclass(frozen=True)
class Answers:
    """What was asked for.

    Attributes:
      inputs: What was planned with.
      curve: For each number of ranks the best plan that trains the same, where such plans are
        compared.
      default: For each number of ranks the strategy's defaults.
      rows: The plans of the largest number of ranks: of those that train the same one for each
        topology, and then of the others one for each way to send less, the fastest first.
      limits: What limits the best of them.
      fits: From which numbers of ranks on the memory fits; None: nobody asked.
      seconds: How long the prediction took.
    """

    inputs: PlanInputs
    curve: tuple[Prediction, ...]
    default: tuple[Prediction, ...]
    rows: tuple[Prediction, ...]
    limits: tuple[Limit, ...]
    fits: Fits | None
    seconds: float

    @property
    def timed(self) -> bool:
        """Whether it is known how long a rank computes; else the question is one of memory."""
        return self.inputs.work.compute_seconds > 0


def answer(options: PlanOptions, inputs: PlanInputs) -> Answers:
    """Predicts all plans for all numbers of ranks.

    Raises:
      ValueError: A number of ranks does not fill hosts, or the links contradict each other.
    """
    began = time.perf_counter()
    base = Plan(shard=options.shard, accumulation=inputs.accumulation)
    same = [name for name in options.compression if name == "none"] or options.compression
    plans = candidates(base, options.topology, compressions=tuple(same), rounds=())
    curve, default = [], []
    for ranks in options.sorted_ranks:
        on = cluster(options, inputs, ranks)
        curve.append(ranked(plans, inputs.work, on)[0])
        default.append(predict(base, inputs.work, on))
    largest = cluster(options, inputs, options.sorted_ranks[-1])
    normalizes = any(layer.is_plain for layer in inputs.work.normalized)
    every = candidates(
        base,
        options.topology,
        compressions=options.compression,
        normalizes=normalizes,
        drops=inputs.work.deviation > 0 and largest.ranks > 1,
    )
    rows = _first_of_each(ranked(every, inputs.work, largest))
    fits = _fits(inputs.work, curve[-1].plan, options) if options.memory else None
    limiting = limits(curve[-1].plan, inputs.work, largest)
    took = time.perf_counter() - began
    return Answers(inputs, tuple(curve), tuple(default), tuple(rows), tuple(limiting), fits, took)


def _fits(work: Workload, used: Plan, options: PlanOptions) -> Fits:
    assert options.memory is not None  # the caller's condition
    waits = COMPRESSIONS[used.compression].waits

    def held(ranks: int) -> Memory:
        shared = options.shard, used.bucket_bytes, used.accumulation, waits
        return memory_of(work, ranks, *shared)

    return Fits(
        ranks_to_fit(lambda ranks: held(ranks).total, options.memory),
        held(1).total <= options.memory,
        ranks_to_fit(lambda ranks: held(ranks).optimizer, options.memory),
    )


def _first_of_each(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Returns the fastest of each topology, and of each compression and synchronization."""
    seen: set[tuple[object, ...]] = set()
    kept = []
    for one in predictions:
        plan = one.plan
        sent = (plan.compression, plan.synchronization, plan.every, plan.batch_normalization)
        kind = (*sent, plan.topology) if plan.is_exact else sent
        if kind not in seen:
            seen.add(kind)
            kept.append(one)
    return kept
