"""A step's time beside MirroredStrategy's, one device's, and DDP's where PyTorch is installed.

Each run has a process of its own. The sides take turns, so that a slow phase of the machine meets
all; when the time is over, what has run is compared.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tfdp.base import machine
from tfdp.tools.bench.bench_models import DENSE
from tfdp.tools.bench.child_process import ChildFailure, run_for_json
from tfdp.tools.bench.ratios import ratio
from tfdp.tools.check_gpu.stages import StageFinding

_ROUNDS = 3
_SHORTEST_RUN_SECONDS = 15.0
# Model, examples of a replica, timed steps. The small one shows what launching costs; the sums of
# the large one are 50 MB.
_WORK = {"GPU": (("small", 128, 100), ("mlp", 128, 50)), "CPU": (("small", 16, 10),)}

Case = tuple[str, int, int, int]  # model, examples of a replica, timed steps, replicas
Times = dict[str, list[float | None]]  # seconds of a step, by side
Run = TypeVar("Run")


def compared(device: str, devices: int, limit_seconds: float) -> StageFinding:
    """Returns the median times of each side and what tfdp takes of them.

    Args:
      device: "GPU" or "CPU".
      devices: The number of devices, and of replicas. Of a single GPU two parts are timed, too.
      limit_seconds: The time after which nothing is begun, or waited for, any more.
    """
    ends = time.monotonic() + limit_seconds
    replicas = (1, 2) if devices == 1 else (devices,)
    cases = [(*work, count) for count in replicas for work in _WORK[device]]
    runs = [(case, side) for case in cases for side in _sides(case, devices)]
    taken, failures = in_turn(
        runs, _ROUNDS, ends, lambda run, left: _run(run[1], run[0], device, left)
    )
    times: dict[Case, Times] = {case: {} for case in cases}
    for (case, side), seconds in taken.items():
        times[case][side] = seconds
    return _finding(times, failures)


def in_turn(
    runs: Iterable[Run],
    rounds: int,
    ends: float,
    run: Callable[[Run, float], dict | ChildFailure],
) -> tuple[dict[Run, list[float | None]], list[str]]:
    """Runs all in each round, until the time is over.

    Args:
      runs: What is run, in its order.
      rounds: How often.
      ends: The time, by `time.monotonic`, after which nothing is begun or waited for.
      run: Runs one for at most so many seconds; returns its `median_step_seconds`.

    Returns:
      The seconds of each that was begun, None where it failed; and the failures in words.
    """
    times: dict[Run, list[float | None]] = {}
    failures = []
    for each in [*runs] * rounds:
        left = ends - time.monotonic()
        if left < _SHORTEST_RUN_SECONDS:
            break
        seconds = times.setdefault(each, [])
        result = run(each, left)
        if not isinstance(result, ChildFailure):
            seconds.append(result["median_step_seconds"])
        elif time.monotonic() < ends:  # else only the time was over
            seconds.append(None)
            failures.append(str(result))
    return times, failures


def medians(times: Times) -> dict[str, float]:
    return {
        side: statistics.median(s for s in seconds if s is not None)
        for side, seconds in times.items()
        if any(s is not None for s in seconds)
    }


def _sides(case: Case, devices: int) -> Iterator[str]:
    model, _, _, replicas = case
    yield from ("tfdp", "stock")
    if replicas == 1:
        yield "one_device"
    # NCCL takes one rank on a GPU.
    if model in DENSE and replicas <= devices and importlib.util.find_spec("torch") is not None:
        yield "ddp"


def _run(side: str, case: Case, device: str, limit_seconds: float) -> dict | ChildFailure:
    model, batch, steps, replicas = case
    words = ["--model", model, "--batch", str(batch), "--steps", str(steps), "--device", device]
    place: dict[str, Any] = {"environment": machine.gpu_settings(), "on_gpus": device == "GPU"}
    if side != "ddp":
        words += ["--side", side, "--replicas", str(replicas)]
        return run_for_json("tfdp.tools.bench.fit_worker", words, limit_seconds, **place)
    ranks = ["run", "-n", str(replicas), "--timeout", f"{limit_seconds:g}", "--"]
    ranks += [sys.executable, "-m", "tfdp.tools.bench.ddp_worker", *words]
    return run_for_json("tfdp.tools.cli", ranks, limit_seconds, prefix="[0] ", **place)


def _finding(times: dict[Case, Times], failures: list[str]) -> StageFinding:
    """Returns what the times say; tfdp's own must be among them."""
    said, cases = [], []
    for (model, batch, steps, replicas), sides in times.items():
        known = medians(sides)
        ratios = {}
        for side in known.keys() - {"tfdp"}:
            rounds = min(len(sides["tfdp"]), len(sides[side]))
            pairs = ratio(sides["tfdp"][:rounds], sides[side][:rounds])
            if pairs is not None:
                ratios[side] = pairs.median_of_pairs
        cases.append(
            {"model": model, "batch": batch, "steps": steps, "replicas": replicas,
             "step_seconds": sides, "ratios": ratios}
        )  # fmt: skip
        beside = ", ".join(f"{value:.2f} x {side}'s" for side, value in sorted(ratios.items()))
        own = f"{1e3 * known['tfdp']:.2f} ms" if "tfdp" in known else "no time"
        said.append(f"{model} on {replicas}: {own}" + (f" ({beside})" if beside else ""))
    missing = {side for sides in times.values() for side in sides if not any(sides[side])}
    complete = all(case["ratios"] for case in cases) and not failures and not missing
    if missing:
        said.append(f"no time of {', '.join(sorted(missing))}: see the file")
    elif not complete:
        said.append("not all runs have ended well: see the file")
    details = {"cases": cases, "failures": failures}
    return StageFinding("works" if complete else "failed", "; ".join(said), details)
