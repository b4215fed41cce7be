"""The benchmark of slow ranks: what a training would gain that does not wait for all of them."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table

from tfdp.base.command_line import add_command, check, option

# The seconds that each rank computes for its steps, [steps, ranks]; 1 where nothing is slow.
Seconds: TypeAlias = np.ndarray


@dataclasses.dataclass(frozen=True)
class SlowRanksOptions:
    """The size of the simulation."""

    ranks: tuple[int, ...] = option((8, 32), "numbers of ranks (8,32)", at_least=2, example="8,32")
    steps: int = option(2000, "steps of each simulation (%(default)s)", at_least=100)
    seed: int = option(0, "seed of the steps' times (%(default)s)", at_least=0)

    def __post_init__(self) -> None:
        check(self)


def add_slow_ranks(commands: argparse._SubParsersAction) -> None:
    """Adds `slow-ranks` to the benchmarks."""
    add_command(
        commands,
        "slow-ranks",
        SlowRanksOptions,
        _slow_ranks,
        help="what a training would gain that does not wait for slow ranks, simulated",
        description="Simulates ranks whose steps take different times, and prints how many "
        "examples a second each way to wait for them trains on. Communication takes no time.",
    )


def _slow_ranks(options: SlowRanksOptions, parser: argparse.ArgumentParser) -> int:
    return run(options)


def run(options: SlowRanksOptions, console: Console | None = None) -> int:
    """Prints a table for each number of ranks.

    Args:
      options: The size of the simulation.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    for ranks in options.ranks:
        kinds = slow_in(ranks, options.steps, options.seed)
        table = Table(
            title=f"{ranks} ranks",
            caption="Examples a second, of those that ranks train on that are never slow.",
        )
        table.add_column("waits for")
        for name in kinds:
            table.add_column(name, justify="right")
        for name, rate in WAYS.items():
            rates = [rate(seconds) for seconds in kinds.values()]
            table.add_row(name, *(f"{each:.2f}" for each in rates))
        (console or Console()).print(table)
    return 0


def slow_in(ranks: int, steps: int, seed: int) -> dict[str, Seconds]:
    """Returns the times of steps of which some are slow, by what makes them so.

    >>> [each.shape for each in slow_in(4, 100, 0).values()]
    [(100, 4), (100, 4), (100, 4)]
    """
    rng = np.random.default_rng(seed)
    jitter = rng.lognormal(0.0, 0.1, (steps, ranks))
    pauses = np.where(rng.random((steps, ranks)) < 0.02, 5.0, 1.0)
    one = np.where(np.arange(ranks) == 0, 1.5, 1.0)
    return {
        "10 % jitter": jitter,
        "2 % of steps x 5": jitter * pauses,
        "one rank x 1.5": jitter * one,
    }


def for_all(seconds: Seconds) -> float:
    """Returns the examples a second of ranks that all wait for each other in each step.

    >>> for_all(np.array([[1.0, 2.0], [2.0, 1.0]]))
    0.5
    """
    return float(len(seconds) / seconds.max(1).sum())


def each_round(updates: int) -> Callable[[Seconds], float]:
    """Returns the function for ranks that wait for each other after so many updates.

    >>> each_round(2)(np.array([[1.0, 2.0], [2.0, 1.0]]))
    0.6666666666666666
    """

    def rate(seconds: Seconds) -> float:
        rounds = len(seconds) // updates
        own = seconds[: rounds * updates].reshape(rounds, updates, -1).sum(1)
        return float(rounds * updates / own.max(1).sum())

    return rate


def for_a_neighbour(seconds: Seconds) -> float:
    """Returns the examples a second of ranks that wait for one other in each step, by `Gossip`.

    >>> for_a_neighbour(np.array([[1.0, 2.0], [2.0, 1.0]]))
    0.5
    """
    ranks = seconds.shape[1]
    hops = [2**k for k in range((ranks - 1).bit_length())]
    ends = np.zeros(ranks)
    for number, own in enumerate(seconds):
        ends = ends + own
        ends = np.maximum(ends, np.roll(ends, hops[number % len(hops)]))
    return float(len(seconds) / ends.max())


def without_last(backups: int) -> Callable[[Seconds], float]:
    """Returns the function for ranks of which each step leaves out so many, those that come last.

    Their examples are lost, and they begin the next step with the others (backup workers: Chen et
    al., arXiv 1604.00981).

    >>> without_last(1)(np.array([[1.0, 2.0], [4.0, 1.0]]))
    0.5
    """

    def rate(seconds: Seconds) -> float:
        ranks = seconds.shape[1]
        ends = np.sort(seconds, axis=1)[:, ranks - 1 - backups]
        return float((ranks - backups) / ranks * len(seconds) / ends.sum())

    return rate


def at_most_behind(staleness: int) -> Callable[[Seconds], float]:
    """Returns the function for ranks that go on unless one is more than so many steps behind.

    Gradients are then up to so many steps old (bounded staleness: Ho et al., NeurIPS 2013).

    >>> at_most_behind(0)(np.array([[1.0, 2.0], [2.0, 1.0]]))
    0.5
    >>> at_most_behind(1)(np.array([[1.0, 2.0], [2.0, 1.0]]))
    0.6666666666666666
    """

    def rate(seconds: Seconds) -> float:
        ends = np.zeros((len(seconds) + 1, seconds.shape[1]))
        for number, own in enumerate(seconds):
            latest = ends[max(0, number - staleness)].max()
            ends[number + 1] = np.maximum(ends[number], latest) + own
        return float(len(seconds) / ends[-1].max())

    return rate


# What a training may wait for, by name: a function of the steps' seconds, which returns the
# examples a second, 1 where no step is slow.
WAYS: Mapping[str, Callable[[Seconds], float]] = {
    "all, each step": for_all,
    "all, LocalSGD(10)": each_round(10),
    "all, LocalSGD(50)": each_round(50),
    "a neighbour, Gossip()": for_a_neighbour,
    "all but 1": without_last(1),
    "all but 2": without_last(2),
    "who is 3 steps behind": at_most_behind(3),
    "who is 10 steps behind": at_most_behind(10),
}
