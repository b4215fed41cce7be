"""The benchmark of equivalence: what N replicas change, under the stock strategy and under tfdp."""

import argparse
import concurrent.futures
import dataclasses
import math

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tfdp.base import machine
from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.child_process import ChildFailure, run_for_json

# The largest difference that counts as equal, over the largest value of one device.
BOUND = 1e-5

_TIMEOUT_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class EquivalenceOptions:
    """The choices of one table."""

    replicas: int = option(4, "logical devices (%(default)s)", at_least=2)
    device: str = option(
        "CPU", "what is split into them: CPU or GPU (%(default)s)", choices=("CPU", "GPU")
    )

    def __post_init__(self) -> None:
        check(self)


def add_equivalence(commands: argparse._SubParsersAction) -> None:
    """Adds `equivalence` to the benchmarks."""
    add_command(
        commands,
        "equivalence",
        EquivalenceOptions,
        _equivalence,
        help="what N replicas change, under TensorFlow's own strategy and under tfdp",
        description="Trains small Keras programs on one device, under "
        "tf.distribute.MirroredStrategy and under tfdp, and prints how far they part.",
    )


def _equivalence(options: EquivalenceOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options.replicas, options.device)


def run(replicas: int, device: str = "CPU", console: Console | None = None) -> int:
    """Runs each case in a process of its own, and prints the table.

    Cost: 13 processes, each about 10 s on two cores; with more cores one at a time for each two.

    Args:
      replicas: The number of logical devices.
      device: "CPU" or "GPU", the first of which is split into them.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where tfdp differs from one device by more than :data:`BOUND`, or a
      process failed.
    """
    from benchmarks.equivalence_cases import CASES

    console = console or Console()
    table = Table(
        title=f"{replicas} replicas on a {device} against one device: largest relative difference"
    )
    for column in ("a Keras program with", "MirroredStrategy", "tfdp"):
        table.add_column(column)

    def trained(case: str) -> dict | ChildFailure:
        arguments = ["--case", case, "--replicas", str(replicas), "--device", device]
        on_gpus = device == "GPU"
        return run_for_json(
            "benchmarks.equivalence_worker", arguments, _TIMEOUT_SECONDS, on_gpus=on_gpus
        )

    equal = True
    at_once = max(1, len(machine.cores()) // 2)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        results = pool.map(trained, CASES)
        found = [*track(results, "Training", len(CASES), console=console, transient=True)]
    for case, result in zip(CASES, found, strict=True):
        if isinstance(result, ChildFailure):
            console.print(str(result), style="red", markup=False, soft_wrap=True)
            result = {side: {"error": result.reason} for side in ("stock", "tfdp")}
        table.add_row(case, _shown(**result["stock"]), _shown(**result["tfdp"]))
        equal = equal and result["tfdp"].get("relative", math.inf) <= BOUND
    console.print(table)
    return 0 if equal else 1


def _shown(relative: float = math.nan, error: str = "") -> str:
    return error or ("NaN" if math.isnan(relative) else f"{relative:.1e}")
