"""One run of `tfdp bench`: rounds of engines in turn, each in fresh processes."""

import dataclasses
import importlib.util
import json
import pathlib
from collections.abc import Sequence

from rich.console import Console

from tfdp.base.atomic_files import temporary_folder
from tfdp.tools.bench import link_rate
from tfdp.tools.bench.bench_options import BenchOptions, EngineRun
from tfdp.tools.bench.bench_rank import RankPlan
from tfdp.tools.bench.bench_tables import Bound, Measured, draw, summary_table, write_results
from tfdp.tools.bench.child_process import ChildFailure, run_module


def run(options: BenchOptions) -> int:
    """Measures tfdp's engines on this host; see :func:`run_rounds`."""
    rate = link_rate.measure([], [], "127.0.0.1")
    bound = Bound(rate, options.processes, options.processes)
    return run_rounds(options, options.runs, bound)


def run_rounds(
    options: BenchOptions,
    runs: Sequence[EngineRun],
    bound: Bound,
    console: Console | None = None,
) -> int:
    """Measures, prints a table for each size, and draws the picture.

    Cost: rounds x engines starts of all processes, some 10 s each, and the all-reduces themselves.

    Args:
      options: The options that say what to measure.
      runs: The runs of a round, those included whose modules are not installed.
      bound: What no all-reduce can beat.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where an engine failed, none is installed or a sum was wrong.
    """
    console = console or Console()
    runs = _installed(runs, console)
    if not runs:
        return 1
    measured: list[Measured] = []
    failures: list[ChildFailure] = []
    console.print(bound.describe(), highlight=False)
    for number in range(options.rounds):
        for each in runs:
            with console.status(f"round {number + 1} of {options.rounds}: {each.engine}"):
                result = _measure(each, options)
            if isinstance(result, ChildFailure):
                failures.append(result)
                console.print(str(result), style="red", markup=False, soft_wrap=True)
            else:
                measured += result
            if options.json is not None:
                write_results(
                    options.json,
                    dataclasses.asdict(options),
                    [dataclasses.asdict(each) for each in measured],
                    [dataclasses.asdict(each) for each in failures],
                )
    for size in options.sizes:
        console.print(summary_table(measured, size, bound))
    if measured:
        draw(measured, bound, options.output)
        console.print(f"Picture: {options.output}", soft_wrap=True, highlight=False)
    wrong = sorted({each.side for each in measured if not each.right})
    if wrong:
        console.print(f"Wrong sums by {', '.join(wrong)}: report it to tfdp.", style="red")
    return 1 if failures or wrong else 0


def _installed(runs: Sequence[EngineRun], console: Console) -> list[EngineRun]:
    """Returns the runs whose modules are installed, and says which are left out."""
    missing = [each for each in runs if importlib.util.find_spec(each.needs) is None]
    for each in missing:
        name = "The engine mpi" if each.engine == "mpi" else each.engine
        console.print(
            f"{name} is left out: {each.needs} is not installed (`pip install "
            "'tfdp[benchmarks]'`).",
            markup=False,
            soft_wrap=True,
        )
    return [each for each in runs if each not in missing]


def _measure(run: EngineRun, options: BenchOptions) -> list[Measured] | ChildFailure:
    with temporary_folder() as folder:
        plan = RankPlan(run.engine, run.sides, options.sizes, options.repeats, folder)
        path = pathlib.Path(folder) / "plan.json"
        path.write_text(json.dumps(dataclasses.asdict(plan)))
        words = ["run", "-n", str(options.processes), *run.launcher, "--", *run.command, str(path)]
        done = run_module("tfdp.tools.cli", words, options.timeout_seconds)
        if isinstance(done, ChildFailure):
            return done
        ranks = [
            json.loads((pathlib.Path(folder) / f"{rank}.json").read_text())
            for rank in range(options.processes)
        ]
    return [
        Measured(
            # Topologies have their name alone on TensorFlow's engine.
            side=cases[0]["side"] + (", mpi" if run.engine == "mpi" else ""),
            size_bytes=cases[0]["size_bytes"],
            # An all-reduce takes as long as on the last of its ranks.
            seconds=tuple(map(max, zip(*(case["seconds"] for case in cases), strict=True))),
            # What a host sends, all of its ranks see.
            link_bytes=tuple(map(max, zip(*(case["link_bytes"] for case in cases), strict=True))),
            right=all(case["right"] for case in cases),
        )
        for cases in zip(*ranks, strict=True)
    ]
