"""One run of `tfdp bench`: rounds of engines in turn, each in fresh processes."""

import contextlib
import dataclasses
import importlib.util
import json
import pathlib
import sys
from collections.abc import Sequence

from rich.console import Console

from tfdp.base.atomic_files import temporary_folder
from tfdp.tools.bench import hosts, link_rate
from tfdp.tools.bench.bench_options import BenchOptions
from tfdp.tools.bench.bench_rank import RankPlan
from tfdp.tools.bench.bench_tables import Bound, Measured, draw, summary_table, write_results
from tfdp.tools.bench.child_process import ChildFailure, run_module, unset_launcher_settings
from tfdp.tools.bench.on_host import on_hosts

# The modules that runs need beside TensorFlow, and the runs whose ranks MPI starts.
_NEEDS = {"gloo": "torch", "mpi": "mpi4py", "mpi4py": "mpi4py", "graph": "mpi4py"}
_UNDER_MPI = ("mpi", "mpi4py", "graph")


def run(options: BenchOptions, console: Console | None = None) -> int:
    """Measures, prints a table for each size, and draws the picture.

    Cost: rounds x engines starts of all processes, some 10 s each, and the all-reduces themselves.

    Args:
      options: The options that say what to measure.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where an engine failed or a sum was wrong.

    Raises:
      HostsError: The hosts cannot be built here; nothing was measured.
    """
    console = console or Console()
    runs = _installed(options.runs, console)
    if not runs:
        return 1
    measured: list[Measured] = []
    failures: list[ChildFailure] = []
    with contextlib.ExitStack() as stack:
        namespaces: Sequence[str] = ()
        if options.hosts is not None:
            namespaces = stack.enter_context(hosts.hosts(options.hosts, options.rate))
        bound = _bound(options, namespaces)
        console.print(bound.describe(options.rate), highlight=False)
        for number in range(options.rounds):
            for engine, sides in runs.items():
                with console.status(f"round {number + 1} of {options.rounds}: {engine}"):
                    result = _measure(engine, sides, options, namespaces)
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


def _installed(runs: dict[str, tuple[str, ...]], console: Console) -> dict[str, tuple[str, ...]]:
    """Returns the runs whose modules are installed, and says which are left out."""
    missing = {name for name, module in _NEEDS.items() if importlib.util.find_spec(module) is None}
    for name in sorted(missing & runs.keys()):
        console.print(
            f"{_shown(name)} is left out: {_NEEDS[name]} is not installed (`pip install "
            "'tfdp[benchmarks]'`).",
            markup=False,
            soft_wrap=True,
        )
    return {name: sides for name, sides in runs.items() if name not in missing}


def _shown(run: str) -> str:
    return "The engine mpi" if run == "mpi" else run


def _bound(options: BenchOptions, namespaces: Sequence[str]) -> Bound:
    if not namespaces:
        rate = link_rate.measure([], [], "127.0.0.1")
        return Bound(rate, options.processes, options.processes)
    sender, receiver = (hosts.inside(name, []) for name in namespaces[:2])
    try:
        rate = link_rate.measure(sender, receiver, hosts.address(1))
    except RuntimeError as error:
        raise hosts.HostsError(str(error)) from error
    return Bound(rate, len(namespaces), options.processes)


def _measure(
    engine: str, sides: tuple[str, ...], options: BenchOptions, namespaces: Sequence[str]
) -> list[Measured] | ChildFailure:
    with temporary_folder() as folder:
        plan = RankPlan(
            engine=engine,
            sides=sides,
            sizes=options.sizes,
            repeats=options.repeats,
            folder=folder,
            between_hosts=bool(namespaces),
        )
        path = pathlib.Path(folder) / "plan.json"
        path.write_text(json.dumps(dataclasses.asdict(plan)))
        rank = [sys.executable, "-m", "tfdp.tools.bench.bench_rank", str(path)]
        worker = on_hosts(namespaces, options.host_of_ranks, rank)
        as_users_do = unset_launcher_settings() if engine == "stock" else []
        launcher = ["--engine", "mpi"] if engine in _UNDER_MPI else []
        done = run_module(
            "tfdp.tools.cli",
            ["run", "-n", str(options.processes), *launcher, "--", *as_users_do, *worker],
            options.timeout_seconds,
        )
        if isinstance(done, ChildFailure):
            return done
        ranks = [
            json.loads((pathlib.Path(folder) / f"{rank}.json").read_text())
            for rank in range(options.processes)
        ]
    return [
        Measured(
            # Topologies have their name alone on TensorFlow's engine.
            side=cases[0]["side"] + (", mpi" if engine == "mpi" else ""),
            size_bytes=cases[0]["size_bytes"],
            # An all-reduce takes as long as on the last of its ranks.
            seconds=tuple(map(max, zip(*(case["seconds"] for case in cases), strict=True))),
            # What a host sends, all of its ranks see.
            link_bytes=tuple(map(max, zip(*(case["link_bytes"] for case in cases), strict=True))),
            right=all(case["right"] for case in cases),
        )
        for cases in zip(*ranks, strict=True)
    ]
