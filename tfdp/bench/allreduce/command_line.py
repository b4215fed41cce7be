"""The words of `tfdp bench allreduce`."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

from tfdp.arguments import require
from tfdp.bench.allreduce.options import (
    OTHERS,
    TOPOLOGIES,
    AllReduceOptions,
    parse_size,
)


def add_allreduce(measures: argparse._SubParsersAction) -> None:
    """Adds the measure to `tfdp bench`."""
    parser = measures.add_parser(
        "allreduce",
        help="how long each topology takes for each size",
        description="Times all-reduces of float32 between processes on this machine, for each "
        "topology of tfdp, for MultiWorkerMirroredStrategy (stock) and, where PyTorch is "
        "installed, for gloo, in turn; prints tables and draws a picture.",
    )
    default = AllReduceOptions()
    names = (*TOPOLOGIES, *OTHERS)
    parser.add_argument(
        "--processes",
        type=int,
        default=default.processes,
        metavar="N",
        help="ranks, one CPU device each (%(default)s)",
    )
    parser.add_argument(
        "--topology",
        type=lambda text: tuple(names if text == "all" else text.split(",")),
        default=names,
        metavar="NAMES",
        help=f"with commas between: {', '.join(names)}; or all (all)",
    )
    parser.add_argument(
        "--sizes",
        type=_list_of(parse_size),
        default=default.sizes,
        metavar="SIZES",
        help="with commas between (1KB,1MB,100MB)",
    )
    parser.add_argument(
        "--hosts",
        type=int,
        metavar="H",
        help="build H hosts as network namespaces of this machine, and put the ranks on them; "
        "needs root (all ranks on loopback)",
    )
    parser.add_argument(
        "--rate", help="with --hosts: what each host may send, such as 200mbit (no limit)"
    )
    parser.add_argument(
        "--order",
        type=_list_of(int),
        metavar="HOSTS",
        help="with --hosts: the host of each rank, such as 0,1,0,1 (0,0,1,1)",
    )
    for name, text in (("rounds", "fresh runs of each engine"), ("repeats", "timed ones in a run")):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (%(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=default.timeout_seconds,
        help="seconds for each run (%(default)g)",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=default.output,
        metavar="PATH.png",
        help="where to draw the times (%(default)s)",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the raw results")
    parser.set_defaults(handler=_allreduce, parser=parser)


def _allreduce(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    try:
        options = AllReduceOptions(
            processes=parsed.processes,
            sides=parsed.topology,
            sizes=parsed.sizes,
            hosts=parsed.hosts,
            rate=parsed.rate,
            order=parsed.order,
            rounds=parsed.rounds,
            repeats=parsed.repeats,
            timeout_seconds=parsed.timeout,
            output=parsed.output,
            json=parsed.json,
        )
    except ValueError as error:
        parser.error(str(error))
    require(["tensorflow", "matplotlib", "rich"], parser)

    from tfdp.bench.allreduce.hosts import HostsError
    from tfdp.bench.allreduce.run import run

    try:
        return run(options)
    except HostsError as error:
        parser.error(str(error))


def _list_of(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse_all(text: str) -> tuple[Any, ...]:
        try:
            return tuple(parse(part) for part in text.split(","))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_all
