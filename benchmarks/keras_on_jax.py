"""The benchmark of steps beside Keras on JAX: two processes, which take turns."""

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.keras_on_jax_worker import MODELS, SIDES
from tfdp.base.command_line import add_command, check, option, require
from tfdp.tools.bench.ratios import ratio

VARIABLES = (10, 100, 600, 3000)


@dataclasses.dataclass(frozen=True)
class KerasOnJAXOptions:
    """What is trained, and how often."""

    models: tuple[str, ...] = option(MODELS, "%(default)s", choices=MODELS)
    variables: tuple[int, ...] = option(
        VARIABLES, "numbers of variables, each a row (%(default)s)", at_least=10
    )
    rounds: int = option(12, "fits a side, in turn (%(default)s)", at_least=1)
    steps: int = option(300, "of each fit (%(default)s)", at_least=1)

    def __post_init__(self) -> None:
        check(self)


def add_keras_on_jax(commands: argparse._SubParsersAction) -> None:
    """Adds `keras-on-jax` to the benchmarks."""
    add_command(
        commands,
        "keras-on-jax",
        KerasOnJAXOptions,
        _keras_on_jax,
        help="steps of model.fit under XLAStrategy and of Keras on JAX, in turn",
        description="Trains networks with more and more variables, and four kinds of networks, on "
        "one CPU device, by XLAStrategy and by Keras on JAX: a process of each, which take turns "
        "for a fit of some steps. Prints the shortest of their fits, the least that all threads of "
        "each have computed in one, which other work changes little, and ratios.",
    )


def _keras_on_jax(options: KerasOnJAXOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "jax"], parser)
    return run(options)


def run(options: KerasOnJAXOptions) -> int:
    """Trains each network on both sides, and prints a table.

    Returns:
      The exit code: 0; 1 where a process failed.
    """
    print(
        "| network | tfdp (ms a step) | Keras on JAX | ratio | pairs "
        "| tfdp (ms of cores a step) | Keras on JAX | ratio | first step (s) | Keras on JAX |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    well = True
    for name in (*map(str, options.variables), *options.models):
        try:
            print(row(name, measured(name, options.rounds, options.steps)), flush=True)
        except ChildProcessError as error:
            well = False
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return 0 if well else 1


def measured(name: str, rounds: int, steps: int) -> dict[str, list[dict[str, float]]]:
    """Returns for each side the seconds of its first step, and of a step in each round.

    Raises:
      ChildProcessError: A process failed.
    """
    found: dict[str, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as running:
        workers = {side: running.enter_context(_worker(side, name)) for side in SIDES}
        for side, worker in workers.items():
            found[side] = [_answer(worker, side)]
        for number in range(rounds):
            # Each goes first in every second round.
            for side in SIDES if number % 2 else reversed(SIDES):
                worker = workers[side]
                print(steps, file=worker.stdin, flush=True)
                found[side].append(_answer(worker, side))
    return found


def row(name: str, found: dict[str, list[dict[str, float]]]) -> str:
    """Returns a row of the table: the shortest times, their ratio and that of pairs.

    >>> steps = {"step": 0.004, "cores": 0.003}, {"step": 0.002, "cores": 0.005}
    >>> own = [{"first step": 3.0}, *steps]
    >>> other = [{"first step": 2.0}, *[{"step": 0.004, "cores": 0.004}] * 2]
    >>> row("600", {"tfdp": own, "keras_on_jax": other})
    '| 600 variables | 2.00 | 4.00 | 0.50 | 0.75 | 3.00 | 4.00 | 0.75 | 3.0 | 2.0 |'
    """
    own, other = (found[side][1:] for side in SIDES)
    pairs = ratio([each["step"] for each in own], [each["step"] for each in other])
    assert pairs is not None
    cells = [f"{name} variables" if name.isdigit() else name]
    for kind in ("step", "cores"):
        least = [min(each[kind] for each in side) for side in (own, other)]
        cells += [*(f"{1e3 * each:.2f}" for each in least), f"{least[0] / least[1]:.2f}"]
        if kind == "step":
            cells.append(f"{pairs.median_of_pairs:.2f}")
    cells += [f"{found[side][0]['first step']:.1f}" for side in SIDES]
    return f"| {' | '.join(cells)} |"


@contextlib.contextmanager
def _worker(side: str, name: str) -> Any:
    command: Sequence[str] = (sys.executable, "-m", "benchmarks.keras_on_jax_worker", side, name)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _answer(worker: Any, side: str) -> dict[str, float]:
    for line in worker.stdout:
        if line.startswith("{"):
            answer: dict[str, float] = json.loads(line)
            return answer
    raise ChildProcessError(
        f"The process of {side} must answer, but ended with {worker.wait()}. Run "
        f"`echo 10 | {' '.join(worker.args)}` to see why."
    )
