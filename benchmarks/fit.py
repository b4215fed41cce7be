"""The benchmark of `fit`: rounds of fresh processes, in turn, and a table of their times."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.json_worker import run_for_json
from benchmarks.models import MODELS
from benchmarks.ratios import Ratio, ratio, spread
from tfdp.bench.child_process import Failure, unset_launcher_settings
from tfdp.bench.results import write_results
from tfdp.command_line import add_command, check, option, require

SIDES = ("tfdp", "stock", "stock_tuned", "one_device")

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
        "run each in P processes, as a cluster, against MultiWorkerMirroredStrategy (%(default)s: "
        "one process, against MirroredStrategy)",
        at_least=1,
        metavar="P",
    )
    steps: int = option(20, "timed steps a process (%(default)s)", at_least=1)
    one_device: bool = option(False, "also time one device with the global batch")
    timeout_seconds: float = option(600.0, "seconds for each process (%(default)g)", above=0)
    json: pathlib.Path | None = option(None, "write the raw results", writes=(), metavar="FILE")

    def __post_init__(self) -> None:
        check(self)
        if self.replicas is None:
            preset = (2, 4) if self.processes == 1 else (self.processes,)
            object.__setattr__(self, "replicas", preset)
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
        tuned = ("stock_tuned",) if self.processes > 1 else ()
        return ("tfdp", "stock", *tuned, *(("one_device",) if self.one_device else ()))


def add_fit(commands: argparse._SubParsersAction) -> None:
    """Adds `fit` to the benchmarks."""
    add_command(
        commands,
        "fit",
        FitOptions,
        _fit,
        help="step time and time to the first step of model.fit",
        description="Step time and time to the first step of model.fit on logical CPU devices, "
        "for tfdp and tf.distribute.MirroredStrategy in turn, each in fresh processes.",
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
    results: list[dict] = []
    failures: list[Failure] = []
    cases = [(model, replicas) for model in options.models for replicas in options.replicas]
    with _progress(console) as progress:
        task = progress.add_task("", total=len(cases) * options.rounds * len(options.sides))
        for model, replicas in cases:
            rounds: dict[str, list[dict | None]] = {side: [] for side in options.sides}
            for _ in range(options.rounds):
                for side in options.sides:
                    progress.update(task, description=f"{model}, {replicas} replicas, {side}")
                    result = _measure(side, model, replicas, options)
                    if isinstance(result, Failure):
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
      rounds: For each side, one result of :func:`benchmarks.fit_worker.measure` a round, or None.
      batch: The number of examples per replica.
    """
    parameters = {r["parameters"] for results in rounds.values() for r in results if r is not None}
    counts = ", ".join(f"{count / 1e6:.2f} M parameters" for count in sorted(parameters))
    table = Table(
        title=f"{title} of {batch} examples, {counts or 'no results'}",
        caption="first step: from the call of fit. ratio: tfdp's median / the side's; "
        "pairs: median of the rounds' ratios",
    )
    for column in ("", "side", "runs", "median", "min-max", "ratio", "pairs"):
        table.add_column(
            column, justify="left" if column in ("", "side") else "right", no_wrap=True
        )
    for key, label in _TIMES.items():
        times = {
            side: [None if result is None else result[key] for result in results]
            for side, results in rounds.items()
        }
        for side, values in times.items():
            compared = None if side == "tfdp" else ratio(times["tfdp"], values)
            table.add_row(label, side, *_time_cells(values), *_ratio_cells(compared))
        table.add_section()
    return table


def _measure(side: str, model: str, replicas: int, options: FitOptions) -> dict | Failure:
    values = {
        "side": side,
        "model": model,
        "replicas": replicas,
        "batch": options.batch,
        "steps": options.steps,
    }
    arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    if options.processes == 1 or side == "one_device":
        return run_for_json("benchmarks.fit_worker", arguments, options.timeout_seconds)
    launch = ["run", "-n", str(options.processes), "--"]
    if side == "stock":
        launch += unset_launcher_settings()
    worker = [sys.executable, "-m", "benchmarks.fit_worker", *arguments]
    return run_for_json("tfdp.cli", [*launch, *worker], options.timeout_seconds, prefix="[0] ")


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
    return f"{compared.of_medians:.3f}", f"{compared.median_of_pairs:.3f}"


def _show(*seconds: float) -> str:
    if max(seconds) >= 1:
        return "-".join(f"{value:.2f}" for value in seconds) + " s"
    return "-".join(f"{1e3 * value:.1f}" for value in seconds) + " ms"
