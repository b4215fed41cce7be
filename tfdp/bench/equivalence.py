"""`tfdp bench equivalence`: what N replicas change, under the stock strategy and under tfdp."""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tfdp.bench.equivalence_cases import CASES
from tfdp.bench.processes import Failure, run_for_json

# Of the largest value of one device.
BOUND = 1e-5

_TIMEOUT_SECONDS = 300.0


def run(replicas: int, console: Console | None = None) -> int:
    """Runs each case in a process of its own, and prints the table.

    Cost: 13 processes, each about 10 s on two cores.

    Args:
        replicas: logical CPU devices.
        console: where to print; by default standard output.

    Returns:
        The exit code: 0, or 1 where tfdp differs from one device by more than :data:`BOUND`, or
        a process failed.
    """
    console = console or Console()
    table = Table(title=f"{replicas} replicas against one device: largest relative difference")
    for column in ("a Keras program with", "MirroredStrategy", "tfdp"):
        table.add_column(column)
    equal = True
    for case in track(CASES, "Training", console=console, transient=True):
        arguments = ["--case", case, "--replicas", str(replicas)]
        result = run_for_json("tfdp.bench.equivalence_worker", arguments, _TIMEOUT_SECONDS)
        if isinstance(result, Failure):
            console.print(str(result), style="red", markup=False, soft_wrap=True)
            result = {side: {"error": result.reason} for side in ("stock", "tfdp")}
        table.add_row(case, _shown(**result["stock"]), _shown(**result["tfdp"]))
        equal = equal and result["tfdp"].get("relative", math.inf) <= BOUND
    console.print(table)
    return 0 if equal else 1


def _shown(relative: float = math.nan, error: str = "") -> str:
    return error or ("NaN" if math.isnan(relative) else f"{relative:.1e}")
