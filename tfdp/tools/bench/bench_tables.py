"""What was measured, shown and kept: tables, the picture, and the raw results in a JSON file."""

import dataclasses
import json
import os
import pathlib
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tfdp.base.atomic_files import replace_text
from tfdp.base.words import duration, size


@dataclasses.dataclass(frozen=True)
class Measured:
    """The times of one side for one size in one run.

    Args:
      side: The topology or engine.
      size_bytes: The size of the buffers that were summed.
      seconds: The time of each all-reduce, on the slowest of its ranks.
      right: Whether every sum was right.
      link_bytes: The bytes that the host which sent most sent over its link in each all-reduce;
        empty where all ranks are on one host.
    """

    side: str
    size_bytes: int
    seconds: tuple[float, ...]
    right: bool
    link_bytes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Bound:
    """The bound that no all-reduce can beat: a host must send 2(h-1)/h of the bytes over its link.

    Args:
      bytes_per_second: The rate of one link, measured by one TCP stream.
      ends: The number of the links' ends: hosts, or ranks where all are on one host.
      ranks: The number of ranks.
      limit: The limit that the links were given, in words; "" for none.

    >>> bound = Bound(24e6, ends=4, ranks=4)
    >>> round(bound.seconds(25_000_000), 3), round(bound.bus_rate(25_000_000, 1.5625) / 1e6)
    (1.562, 24)
    """

    bytes_per_second: float
    ends: int
    ranks: int
    limit: str = ""

    def seconds(self, size_bytes: int) -> float:
        """Returns the least time for an all-reduce."""
        return 2 * (self.ends - 1) / self.ends * size_bytes / self.bytes_per_second

    def bus_rate(self, size_bytes: int, seconds: float) -> float:
        """Returns the bytes per second that each rank of a ring would have to send in that time."""
        return 2 * (self.ranks - 1) / self.ranks * size_bytes / seconds

    def describe(self) -> str:
        """Returns the links in words."""
        megabits = f"{self.bytes_per_second * 8 / 1e6:.0f} Mbit/s"
        if self.ends == self.ranks and not self.limit:
            return f"{self.ranks} ranks. One TCP stream carries {megabits}."
        limit = f" of {self.limit}" if self.limit else ""
        return f"{self.ranks} ranks on {self.ends} hosts. A link carries {megabits}{limit}."


def summary_table(measured: Sequence[Measured], size_bytes: int, bound: Bound) -> Table:
    """Returns a table of the sides, the fastest first: times, bandwidths, ratio to the bound."""
    table = Table(
        title=f"{size(size_bytes)} of float32, bound {duration(bound.seconds(size_bytes))}",
        caption="algorithm: bytes / time. bus: bytes that a ring's rank sends / time. "
        "/ bound: time / bound. link: what the host that sends most sends over its link.",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("side", overflow="fold")
    links = _link_bytes(measured, size_bytes)
    link = ("link\nMB",) if links else ()
    for column in ("median", "min-max", "algorithm\nMB/s", "bus\nMB/s", "/ bound", *link):
        table.add_column(column, justify="right", no_wrap=True)
    for side, seconds in sorted(times(measured, size_bytes).items(), key=lambda row: row[1][0]):
        median = statistics.median(seconds)
        table.add_row(
            side,
            duration(median),
            _range(min(seconds), max(seconds)),
            f"{size_bytes / median / 1e6:.1f}",
            f"{bound.bus_rate(size_bytes, median) / 1e6:.1f}",
            f"{median / bound.seconds(size_bytes):.2f}",
            *([f"{statistics.median(links[side]) / 1e6:.1f}"] if links else []),
        )
    return table


def _link_bytes(measured: Sequence[Measured], size_bytes: int) -> dict[str, list[int]]:
    """Returns for each side the bytes over a link in each all-reduce; empty on one host."""
    found: dict[str, list[int]] = {}
    for each in measured:
        if each.size_bytes == size_bytes and each.link_bytes:
            found.setdefault(each.side, []).extend(each.link_bytes)
    return found


def times(measured: Sequence[Measured], size_bytes: int) -> dict[str, list[float]]:
    """Returns for each side its times for a size: the median first, then all as they came."""
    found: dict[str, list[float]] = {}
    for each in measured:
        if each.size_bytes == size_bytes:
            found.setdefault(each.side, []).extend(each.seconds)
    return {side: [statistics.median(values), *values] for side, values in found.items()}


def draw(measured: Sequence[Measured], bound: Bound, path: pathlib.Path) -> None:
    """Draws time over size for every side, and the bound, on logarithmic axes.

    Args:
      measured: All times.
      bound: The bound, drawn as a line.
      path: The path of the PNG, which is replaced.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    sizes = sorted({each.size_bytes for each in measured})
    for side in dict.fromkeys(each.side for each in measured):
        medians = [
            times(measured, size)[side][0] for size in sizes if side in times(measured, size)
        ]
        axes.plot(sizes[: len(medians)], medians, marker="o", label=side)
    axes.plot(sizes, [bound.seconds(size) for size in sizes], "k--", label="bound")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="bytes",
        ylabel="seconds",
        title=f"All-reduce of float32, {bound.ranks} ranks",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def write_results(
    path: pathlib.Path,
    options: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
) -> None:
    """Writes everything that was measured so far, and the machine, as JSON.

    The file is replaced at once: a reader sees the old one or the new one, never a part.
    """
    content = {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)),
        },
        "options": options,
        "results": results,
        "failures": failures,
    }
    replace_text(path, json.dumps(content, indent=1, default=str))


def _range(least: float, most: float) -> str:
    low, _, unit = duration(least).rpartition(" ")
    high = duration(most)
    return f"{low} - {high}" if high.endswith(f" {unit}") else f"{low} {unit} - {high}"
