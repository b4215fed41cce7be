"""The cells of the benchmark: what is measured in each, the file of those that are finished."""

import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import hosts
from benchmarks.on_host import on_hosts
from tfdp.tools.bench.child_process import ChildFailure, run_for_json

RATES = (50, 200, 1000)  # Mbit/s
PLACES = ("0,1", "0,1,2", "0,1,2,3")
WHOLE = ""
SENDINGS = (WHOLE, 'compression=Cast("bfloat16")', "compression=ErrorFeedback(Int8())")
TOPOLOGIES = ("native", "direct", "halving_doubling", "tree")
# Timed steps, so that a group of cells takes about a minute.
_STEPS = {50: 3, 200: 6, 1000: 10}


@dataclasses.dataclass(frozen=True)
class Group:
    """The cells that one start of the ranks measures, one for each model and topology.

    Args:
      places: The host of each rank, with commas between.
      rate: What each host may send, in Mbit/s.
      sending: The strategy's other arguments.

    >>> Group("0,1", 200, "").ranks
    2
    """

    places: str
    rate: int
    sending: str

    @property
    def host_of_ranks(self) -> list[int]:
        """The index of each rank's host."""
        return [int(place) for place in self.places.split(",")]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.host_of_ranks)

    @property
    def topologies(self) -> tuple[str, ...]:
        """The topologies, of which `Int8` needs one: it has an exchange of its own."""
        if "Int8" in self.sending:
            return TOPOLOGIES[:1]
        return TOPOLOGIES if self.sending == WHOLE else ("native", "tree")


def groups() -> Iterator[Group]:
    """Yields all groups, such that each rate and number of hosts comes early."""
    for sending in SENDINGS:
        pairs = itertools.product(enumerate(PLACES), enumerate(RATES))
        for (_, places), (_, rate) in sorted(pairs, key=lambda p: (p[0][0] + p[1][0]) % 3):
            yield Group(places, rate, sending)


def read(path: pathlib.Path) -> list[dict]:
    """Returns the finished groups of a file, one for each round; none without a file.

    Raises:
      ValueError: A line is not one that this benchmark wrote.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            record = json.loads(line)
            found.append(record | {"group": dataclasses.asdict(Group(**record["group"]))})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"every line of `results` must be a finished group; received line {number} of "
                f"{path}, which is none ({error}); remove that line."
            ) from error
    return found


def left(records: Sequence[Mapping[str, Any]], rounds: int) -> Iterator[Group]:
    """Yields the groups that are to be measured still.

    First those that were never measured, then each that has fewer than `rounds`, the one whose
    steps spread most in front, and so on until all have so many.

    >>> next(left([], 1))
    Group(places='0,1', rate=50, sending='')
    """
    done = Counter(Group(**record["group"]) for record in records)
    spreads = {Group(**record["group"]): spread(record) for record in quietest(records)}
    yield from (group for group in groups() if not done[group])
    order = sorted(groups(), key=lambda group: -spreads.get(group, 0.0))
    for again in range(1, rounds):
        yield from (group for group in order if max(1, done[group]) + again <= rounds)


def spread(record: Mapping[str, Any]) -> float:
    """Returns the range of the middle half of a cell's steps over their median, of most cells.

    >>> spread({"cells": [{"seconds": [1.0, 2.0, 2.0, 2.0, 3.0]}, {"seconds": [1.0, 2.0, 3.0]}]})
    0.25
    """
    found = []
    for cell in record["cells"]:
        low, middle, high = statistics.quantiles(cell["seconds"], n=4, method="inclusive")
        found.append((high - low) / middle)
    return statistics.median(found)


def quietest(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns of each group's rounds the one whose steps spread least: it was disturbed least.

    Args:
      records: The finished groups; see `read`.
    """
    found: dict[Group, Mapping[str, Any]] = {}
    for record in records:
        group = Group(**record["group"])
        if group not in found or spread(record) < spread(found[group]):
            found[group] = record
    return list(found.values())


def measure(group: Group, timeout_seconds: float) -> dict | ChildFailure:
    """Builds hosts, and measures a group's cells on them.

    Raises:
      HostsError: The hosts cannot be built here.
    """
    # A bucket of 2 ms: what a link passes at once after a pause is little beside a step.
    burst = f"{max(16, group.rate // 4)}kb"
    worker = [sys.executable, "-m", "benchmarks.plan.worker"]
    worker += ["--steps", str(_STEPS[group.rate]), "--sending", group.sending]
    worker += ["--topologies", ",".join(group.topologies)]
    worker += ["--probe"] if group.sending == WHOLE else []
    count = max(group.host_of_ranks) + 1
    with hosts.hosts(count, f"{group.rate}mbit", burst) as namespaces:
        placed = on_hosts(namespaces, group.host_of_ranks, worker)
        words = ["run", "-n", str(group.ranks), "--", *placed]
        result = run_for_json("tfdp.tools.cli", words, timeout_seconds, prefix="[0] ")
    if isinstance(result, ChildFailure):
        return result
    return {"group": dataclasses.asdict(group), **result}


def append(path: pathlib.Path, record: dict) -> None:
    """Adds a finished group, which is on the disk when this function returns."""
    with path.open("a") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")
        file.flush()
        os.fsync(file.fileno())
