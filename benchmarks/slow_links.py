"""The benchmark of slow links: the time of a step between hosts, by what replicas send."""

import argparse
import dataclasses
import pathlib
import statistics
import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import hosts
from benchmarks.on_host import on_hosts
from benchmarks.sending import named
from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench import link_rate
from tfdp.tools.bench.bench_tables import write_results
from tfdp.tools.bench.child_process import ChildFailure, run_for_json

MODELS = ("mlp", "transformer")

# The arguments of the strategy, as a program writes them after `from tfdp.compression import *` and
# `from tfdp.synchronization import *`. With the last one no gradient is sent, and no weight.
NOTHING_SENT = "synchronization=LocalSGD(10**6)"
ARGUMENTS = (
    "",
    'compression=Cast("bfloat16")',
    "compression=Int8()",
    "compression=ErrorFeedback(Int8())",
    "compression=ErrorFeedback(Sign())",
    "compression=ErrorFeedback(TopK(0.01))",
    "compression=ErrorFeedback(PowerSGD(4))",
    "compression=ErrorFeedback(BetweenHosts(Int8()))",
    "compression=ErrorFeedback(BetweenHosts(TopK(0.01)))",
    "synchronization=LocalSGD(50)",
    "synchronization=DiLoCo(50)",
    "synchronization=DiLoCo(50, fragments=12)",
    "synchronization=DiLoCo(50, fragments=12, overlap=0.5)",
    "synchronization=Delayed()",
    NOTHING_SENT,
)


@dataclasses.dataclass(frozen=True)
class SlowLinksOptions:
    """The choices of one table.

    Raises:
      ValueError: A value is out of its range.

    >>> SlowLinksOptions(host_of_ranks=(0, 0, 1, 1)).hosts
    2
    """

    host_of_ranks: tuple[int, ...] = option(
        (0, 1, 2, 3),
        "the host of each rank, from 0, with commas between (0,1,2,3)",
        flags=("--order",),
        example="0,0,1,1",
        metavar="HOSTS",
    )
    rate: str = option("200mbit", "what each host may send (%(default)s)")
    model: str = option("mlp", "what to train (%(default)s)", choices=MODELS)
    engine: str = option("tensorflow", "the engine (%(default)s)", choices=("tensorflow", "mpi"))
    topology: str = option("auto", "the topology of what is summed (%(default)s)")
    batch: int = option(4, "examples per replica (%(default)s)", at_least=1)
    rounds: int = option(1, "fresh runs of each (%(default)s)", at_least=1)
    only: tuple[int, ...] = option(
        tuple(range(len(ARGUMENTS))),
        f"rows of the table, from 0 (all; {len(ARGUMENTS) - 1}, where nothing is sent, always)",
        at_least=0,
        example="0,3,5",
        metavar="ROWS",
    )
    timeout_seconds: float = option(900.0, "seconds for each run (%(default)g)", above=0)
    json: pathlib.Path | None = option(None, "write the raw results", writes=(), metavar="FILE")

    def __post_init__(self) -> None:
        check(self)
        count = len(ARGUMENTS)
        if max(self.only) >= count:
            raise ValueError(
                f"`only` must be rows from 0 to {count - 1}; received {max(self.only)}; "
                f"do `--only 0,{count - 1}`."
            )
        if set(self.host_of_ranks) != set(range(self.hosts)) or self.hosts < 2:
            raise ValueError(
                "`order` must name two hosts or more, from 0 without a gap; received "
                f"{','.join(map(str, self.host_of_ranks))}; do `--order 0,0,1,1`."
            )

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return max(self.host_of_ranks) + 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """What is measured; the last one is always that in which nothing is sent."""
        chosen = [ARGUMENTS[row] for row in sorted(set(self.only))]
        return (*(each for each in chosen if each != NOTHING_SENT), NOTHING_SENT)


def add_slow_links(commands: argparse._SubParsersAction) -> None:
    """Adds `slow-links` to the benchmarks."""
    add_command(
        commands,
        "slow-links",
        SlowLinksOptions,
        _slow_links,
        help="step time between hosts, by compression and synchronization",
        description="Builds hosts as network namespaces with limited links (Linux, root), trains a "
        "model on a rank or more in each, with each compression and synchronization in turn, and "
        "prints the time of a step, and what of it is communication.",
    )


def _slow_links(options: SlowLinksOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    try:
        return run(options)
    except hosts.HostsError as error:
        parser.error(str(error))


def run(options: SlowLinksOptions, console: Console | None = None) -> int:
    """Measures each compression and synchronization, and prints a table.

    Cost: rounds x 15 trainings of all ranks, each 30 to 60 s on two cores.

    Args:
      options: The options that say what to measure.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where a run failed.

    Raises:
      HostsError: The hosts cannot be built here; nothing was measured.
    """
    console = console or Console()
    measured: dict[str, list[dict]] = {each: [] for each in options.arguments}
    failures: list[ChildFailure] = []
    with hosts.hosts(options.hosts, options.rate) as namespaces:
        sender, receiver = (hosts.inside(name, []) for name in namespaces[:2])
        rate = link_rate.measure(sender, receiver, hosts.address(1))
        for number in range(options.rounds):
            for arguments in measured:
                with console.status(f"round {number + 1}: {arguments or 'whole gradients'}"):
                    result = _measure(arguments, options, namespaces)
                if isinstance(result, ChildFailure):
                    failures.append(result)
                    console.print(str(result), style="red", markup=False, soft_wrap=True)
                else:
                    measured[arguments].append(result)
                if options.json is not None:
                    write_results(
                        options.json,
                        dataclasses.asdict(options) | {"bytes_per_second": rate},
                        [result for results in measured.values() for result in results],
                        [dataclasses.asdict(failure) for failure in failures],
                    )
    console.print(summary_table(measured, options, rate))
    return 1 if failures else 0


def _measure(
    arguments: str, options: SlowLinksOptions, namespaces: Sequence[str]
) -> dict | ChildFailure:
    worker = [sys.executable, "-m", "benchmarks.slow_links_worker", "--strategy", arguments]
    worker += ["--model", options.model, "--batch", str(options.batch)]
    worker += ["--engine", options.engine, "--topology", options.topology]
    words = ["run", "-n", str(len(options.host_of_ranks))]
    words += ["--engine", "mpi"] if options.engine == "mpi" else []
    words += ["--", *on_hosts(namespaces, options.host_of_ranks, worker)]
    return run_for_json("tfdp.tools.cli", words, options.timeout_seconds, prefix="[0] ")


def bound(weights: int, host_of_ranks: Sequence[int], rate: float) -> float:
    """Returns the seconds that no sum of whole gradients can go below.

    Each of h hosts must send 2(h-1)/h of the bytes, as in a ring over hosts.

    Args:
      weights: The bytes of the gradients.
      host_of_ranks: For each rank the index of its host.
      rate: What each host may send, in bytes per second.

    >>> bound(50_000_000, [0, 0, 1, 1], 25e6)
    2.0
    """
    count = len(set(host_of_ranks))
    return 2 * (count - 1) / count * weights / rate


def summary_table(measured: dict[str, list[dict]], options: SlowLinksOptions, rate: float) -> Table:
    """Returns a table of step time, communication, and bytes for each of the arguments.

    Args:
      measured: For each of `ARGUMENTS` the results of `benchmarks.slow_links_worker`.
      options: The options of the run.
      rate: What each host may send, in bytes per second, as measured.
    """
    seconds = {
        arguments: statistics.median(result["seconds_per_step"] for result in results)
        for arguments, results in measured.items()
        if results
    }
    delivered = [result for results in measured.values() for result in results]
    weights = 4 * delivered[0]["parameters"] if delivered else 0
    least = bound(weights, options.host_of_ranks, rate)
    table = Table(
        title=f"{options.model}, {weights / 1e6:.1f} MB of gradients, {len(options.host_of_ranks)} "
        f"ranks on {options.hosts} hosts at {8 * rate / 1e6:.0f} Mbit/s, engine {options.engine}",
        caption=f"step: seconds, the mean over a round of steps. sent: communication, a step's "
        f"time less that of a step that sends nothing. x: the same over that of whole gradients "
        f"(the bound of these is {least:.2f} s). MB: sent by the host that sends most, a step. "
        "CPU: seconds of a core that rank 0 takes, a step.",
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    for column in ("", "step", "sent", "x", "MB", "CPU", "min-max of step"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    nothing, whole = seconds.get(NOTHING_SENT), seconds.get("")
    for arguments, results in measured.items():
        name = "nothing" if arguments == NOTHING_SENT else named(arguments)
        if not results:
            table.add_row(name, "failed")
            continue
        row = [name, f"{seconds[arguments]:.3f}", "", ""]
        if nothing is not None and arguments != NOTHING_SENT:
            sent = seconds[arguments] - nothing
            row[2] = f"{sent:.3f}"
            row[3] = "" if whole is None else f"{sent / (whole - nothing):.3f}"
        steps = [result["seconds_per_step"] for result in results]
        most = statistics.median(max(result["bytes_per_step"]) for result in results)
        cores = statistics.median(result["processor_seconds_per_step"] for result in results)
        row += [f"{most / 1e6:.2f}", f"{cores:.3f}"]
        table.add_row(*row, f"{min(steps):.3f}-{max(steps):.3f}")
    return table
