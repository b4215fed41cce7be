"""The benchmark of `fit`: rounds of fresh processes, in turn, and a table of their times."""

import argparse
import dataclasses
import importlib.util
import pathlib
import sys
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tfdp.base import machine
from tfdp.base.command_line import add_command, check, option, require
from tfdp.tools.bench.bench_models import DENSE, MODELS
from tfdp.tools.bench.bench_tables import write_results
from tfdp.tools.bench.child_process import ChildFailure, run_for_json, unset_launcher_settings
from tfdp.tools.bench.fit_worker import SIDES
from tfdp.tools.bench.ratios import Ratio, ratio, spread

ENGINES = {"tensorflow": "tfdp", "mpi": "tfdp_mpi"}

# The module that a side needs, and how the side is named where the module is missing.
_NEEDS = {"tfdp_mpi": ("mpi4py", "The engine mpi"), "ddp": ("torch", "PyTorch's DDP")}

_TIMES = {"median_step_seconds": "step", "first_step_seconds": "first step"}

# The results of the rounds by side; None where the process failed.
Rounds = Mapping[str, Sequence[dict | None]]


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """The choices of one benchmark run.

    Raises:
      ValueError: A value is out of its range, or the values do not go together.

    >>> FitOptions(one_device=True).sides
    ('tfdp', 'stock', 'one_device')
    >>> FitOptions(processes=2, engines=("mpi",)).sides
    ('tfdp_mpi', 'stock', 'stock_tuned', 'ddp')
    >>> FitOptions().replicas, FitOptions(processes=3).replicas
    ((2, 4), (3,))
    """

    model: str = option("all", "what to train (%(default)s)", choices=(*MODELS, "all"))
    replicas: tuple[int, ...] = option(
        None,
        "numbers of replicas (2,4, or as many as processes)",
        at_least=1,
        example="2,4",
    )
    batch: int = option(16, "examples per replica (%(default)s)", at_least=1)
    rounds: int = option(5, "fresh runs a side (%(default)s)", at_least=1)
    processes: int = option(
        1,
        "run each in P processes, as a cluster, against MultiWorkerMirroredStrategy and PyTorch's "
        "DDP with gloo (%(default)s: one process, against MirroredStrategy)",
        at_least=1,
        metavar="P",
    )
    engines: tuple[str, ...] = option(
        None,
        "with --processes: tfdp's engines, with a comma between (tensorflow,mpi)",
        flags=("--engine",),
        choices=tuple(ENGINES),
        example="tensorflow,mpi",
        metavar="ENGINES",
    )
    steps: int = option(20, "timed steps a process (%(default)s)", at_least=1)
    jit_compile: bool = option(False, "train with jit_compile=True on all sides but DDP")
    one_device: bool = option(False, "also time one device with the global batch")
    timeout_seconds: float = option(600.0, "seconds for each process (%(default)g)", above=0)
    json: pathlib.Path | None = option(None, "write the raw results", writes=(), metavar="FILE")

    def __post_init__(self) -> None:
        check(self)
        if self.replicas is None:
            preset = (2, 4) if self.processes == 1 else (self.processes,)
            object.__setattr__(self, "replicas", preset)
        if self.engines is None:
            chosen = tuple(ENGINES) if self.processes > 1 else ("tensorflow",)
            object.__setattr__(self, "engines", chosen)
        if self.processes == 1 and self.engines != ("tensorflow",):
            raise ValueError(
                "`engine` must be tensorflow in one process, for MPI moves tensors between "
                f"processes; received {','.join(self.engines)}; do `--processes 2`."
            )
        if self.processes > 1 and set(self.replicas) != {self.processes}:
            raise ValueError(
                "`replicas` must be the number of processes, for MultiWorkerMirroredStrategy has "
                f"one CPU device in each; received {','.join(map(str, self.replicas))} and "
                f"{self.processes} processes; do `--replicas {self.processes}`."
            )

    @property
    def models(self) -> tuple[str, ...]:
        """The models to train."""
        return MODELS if self.model == "all" else (self.model,)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides to measure in each round, in this order.

        In several processes the stock strategy is measured twice: as its users start it, and with
        the threads and memory settings of `tfdp run`.
        """
        others = ("stock_tuned", "ddp") if self.processes > 1 else ()
        own = tuple(ENGINES[engine] for engine in self.engines)
        return (*own, "stock", *others, *(("one_device",) if self.one_device else ()))


def add_fit(commands: argparse._SubParsersAction) -> None:
    """Adds `fit` to the benchmarks."""
    add_command(
        commands,
        "fit",
        FitOptions,
        _fit,
        help="step time and time to the first step of model.fit",
        description="Step time and time to the first step of model.fit on logical CPU devices, "
        "for tfdp and tf.distribute.MirroredStrategy in turn, each in fresh processes; or in "
        "several processes, where PyTorch's DDP with gloo trains the dense networks, too.",
    )


def _fit(options: FitOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    return run(options)


def run(options: FitOptions, console: Console | None = None) -> int:
    """Measures every model at every number of replicas, and prints a table for each.

    The sides alternate (A B A B ...), each in its own process. Cost: models x replicas x sides
    x rounds, each 10 to 60 s on two cores.

    Args:
      options: The options that say what to measure.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where a process failed.
    """
    console = console or Console()
    installed = _installed(options.sides, console)
    if not any(side in ENGINES.values() for side in installed):
        return 1
    results: list[dict] = []
    failures: list[ChildFailure] = []
    cases = [(model, replicas) for model in options.models for replicas in options.replicas]
    with _progress(console) as progress:
        sides_of = {model: _sides_for(model, installed) for model in options.models}
        total = options.rounds * sum(len(sides_of[model]) for model, _ in cases)
        task = progress.add_task("", total=total)
        for model, replicas in cases:
            rounds: dict[str, list[dict | None]] = {side: [] for side in sides_of[model]}
            for _ in range(options.rounds):
                for side in rounds:
                    progress.update(task, description=f"{model}, {replicas} replicas, {side}")
                    result = _measure(side, model, replicas, options)
                    if isinstance(result, ChildFailure):
                        failures.append(result)
                        console.print(str(result), style="red", markup=False, soft_wrap=True)
                        rounds[side].append(None)
                    else:
                        results.append(result)
                        rounds[side].append(result)
                    progress.advance(task)
                    if options.json is not None:
                        write_results(
                            options.json,
                            dataclasses.asdict(options),
                            results,
                            [dataclasses.asdict(failure) for failure in failures],
                        )
            title = f"{model}, {replicas} replicas"
            if options.processes > 1:
                title += f" in {options.processes} processes"
            console.print(summary_table(title, rounds, options.batch))
    if options.json is not None:
        console.print(f"Raw results: {options.json}", soft_wrap=True, highlight=False)
    return 1 if failures else 0


def summary_table(title: str, rounds: Rounds, batch: int) -> Table:
    """Returns a table of sides and kinds of time: median, range, and tfdp's time over the side's.

    Args:
      title: The name of the model and the number of replicas.
      rounds: For each side, one result of :func:`tfdp.tools.bench.fit_worker.measure` a round, or
        None.
      batch: The number of examples per replica.
    """
    delivered = [r for results in rounds.values() for r in results if r is not None]
    counts = ", ".join(
        f"{count / 1e6:.2f} M parameters, {4 * count / 1e6:.1f} MB of gradients a step"
        for count in sorted({result["parameters"] for result in delivered})
    )
    table = Table(
        title=f"{title} of {batch} examples,\n{counts or 'no results'}",
        caption="first step: from the call of fit. thr: threads of a rank. coll: collectives "
        "a step, where they can be counted. ratio: tfdp's median / the side's. "
        "pairs: median of the rounds' ratios.",
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    own = [side for side in rounds if side in ENGINES.values()]
    compared = [
        f"{name}\n{SIDES[side].partition(', ')[2]}" for side in own for name in ("ratio", "pairs")
    ]
    for column in ("", "runs", "thr", "coll", "median", "min-max", *compared):
        table.add_column(column.strip(), justify="right" if column else "left", no_wrap=True)
    for key, label in _TIMES.items():
        times = {
            side: [None if result is None else result[key] for result in results]
            for side, results in rounds.items()
        }
        table.add_row(f"{label}:")
        for side, values in times.items():
            ratios = [
                cell
                for first in own
                for cell in _ratio_cells(None if first == side else ratio(times[first], values))
            ]
            runs, *seconds = _time_cells(values)
            about = (_common(rounds[side], "threads"), _common(rounds[side], "collectives"))
            table.add_row(f"  {SIDES[side]}", runs, *about, *seconds, *ratios)
        table.add_section()
    return table


def _common(results: Sequence[dict | None], key: str) -> str:
    """Returns the value that a side's results have, the first round's; "" without one."""
    found = [result.get(key) for result in results if result is not None]
    return "" if not found or found[0] is None else f"{found[0]:g}"


def _installed(sides: Sequence[str], console: Console) -> list[str]:
    """Returns the sides whose modules are installed, and says which are left out."""
    found = []
    for side in sides:
        module, name = _NEEDS.get(side, (None, ""))
        if module is None or importlib.util.find_spec(module) is not None:
            found.append(side)
        else:
            console.print(
                f"{name} is left out: {module} is not installed (`pip install "
                "'tfdp[benchmarks]'`).",
                markup=False,
                soft_wrap=True,
            )
    return found


def _sides_for(model: str, sides: Sequence[str]) -> list[str]:
    """Returns the sides that train `model`: PyTorch's trains dense networks alone."""
    return [side for side in sides if side != "ddp" or model in DENSE]


def _measure(side: str, model: str, replicas: int, options: FitOptions) -> dict | ChildFailure:
    values = {"model": model, "batch": options.batch, "steps": options.steps}
    module = "tfdp.tools.bench.ddp_worker"
    if side != "ddp":
        module = "tfdp.tools.bench.fit_worker"
        values |= {"side": side, "replicas": replicas}
    arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    if options.jit_compile and side != "ddp":
        arguments.append("--jit-compile")
    if options.processes == 1 or side == "one_device":
        kernels = machine.fast_kernels() if options.processes > 1 else {}
        return run_for_json(module, arguments, options.timeout_seconds, environment=kernels)
    launch = ["run", "-n", str(options.processes)]
    launch += ["--engine", "mpi", "--"] if side == "tfdp_mpi" else ["--"]
    if side == "stock":
        launch += unset_launcher_settings()
    worker = [sys.executable, "-m", module, *arguments]
    return run_for_json(
        "tfdp.tools.cli", [*launch, *worker], options.timeout_seconds, prefix="[0] "
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("processes"),
        TimeElapsedColumn(),
        console=console,
    )


def _time_cells(values: Sequence[float | None]) -> tuple[str, str, str]:
    delivered = [value for value in values if value is not None]
    counted = f"{len(delivered)}/{len(values)}"
    if not delivered:
        return counted, "failed", ""
    times = spread(delivered)
    return counted, _show(times.median), _show(times.minimum, times.maximum)


def _ratio_cells(compared: Ratio | None) -> tuple[str, str]:
    if compared is None:
        return "", ""
    return f"{compared.of_medians:.2f}", f"{compared.median_of_pairs:.2f}"


def _show(*seconds: float) -> str:
    if max(seconds) >= 1:
        return "-".join(f"{value:.2f}" for value in seconds) + " s"
    return "-".join(f"{1e3 * value:.1f}" for value in seconds) + " ms"
