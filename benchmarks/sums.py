"""The benchmark of sums: `tfdp bench` beside other libraries, and on simulated hosts."""

import argparse
import contextlib
import dataclasses
import re
from collections.abc import Sequence

from benchmarks import hosts
from benchmarks.on_host import on_hosts
from tfdp.base.command_line import add_command, option, require
from tfdp.tools.bench import link_rate
from tfdp.tools.bench.bench_options import TOPOLOGIES, BenchOptions, EngineRun
from tfdp.tools.bench.child_process import unset_launcher_settings

_RANK = (EngineRun.command[0], "-m", "benchmarks.sums_rank")
_MPI = ("--engine", "mpi")

#: What else sums: TensorFlow's own strategy as its users start it, PyTorch, mpi4py, and mpi4py
#: that a TensorFlow graph calls.
OTHERS = {
    "stock": EngineRun("stock", ("stock",), command=(*unset_launcher_settings(), *_RANK)),
    "gloo": EngineRun("gloo", ("gloo",), "torch", command=_RANK),
    "mpi4py": EngineRun("mpi4py", ("mpi4py",), "mpi4py", _MPI, _RANK),
    "graph": EngineRun("graph", ("graph",), "mpi4py", _MPI, _RANK),
}

_RATE_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_rate(text: str) -> float:
    """Returns bits per second, from a rate as `tc` writes it.

    Raises:
      ValueError: The text is no rate above 0.

    >>> parse_rate("200mbit"), parse_rate("1.5gbit")
    (200000000.0, 1500000000.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
    if not match or not float(match[1]):
        raise ValueError(
            "`rate` must be above 0, in kbit, mbit or gbit; received "
            f"{text!r}; do `--rate 200mbit`."
        )
    return float(match[1]) * _RATE_UNITS[match[2]]


@dataclasses.dataclass(frozen=True)
class SumsOptions(BenchOptions):
    """The choices of one run.

    Raises:
      ValueError: A value is out of its range, or the values do not go together.

    >>> SumsOptions(processes=4, hosts=2).host_of_ranks
    (0, 0, 1, 1)
    """

    sides: tuple[str, ...] = option(
        (*TOPOLOGIES, *OTHERS),
        f"with commas between: {', '.join((*TOPOLOGIES, *OTHERS))} (mpi4py called by a "
        "TensorFlow graph); or all (all)",
        flags=("--topology",),
        choices=(*TOPOLOGIES, *OTHERS),
        metavar="NAMES",
    )
    hosts: int | None = option(
        None,
        "build H hosts as network namespaces of this machine, and put the ranks on them; needs "
        "root (all ranks on loopback)",
        metavar="H",
    )
    rate: str | None = option(
        None, "with --hosts: what each host may send, such as 200mbit (no limit)"
    )
    order: tuple[int, ...] | None = option(
        None,
        "with --hosts: the host of each rank, such as 0,1,0,1 (0,0,1,1)",
        example="0,1,0,1",
        metavar="HOSTS",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosts is None:
            for name in ("rate", "order"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}` must come with hosts; received none; do `--hosts 2 --{name} "
                        f"{'200mbit' if name == 'rate' else '0,1'}`."
                    )
            return
        if not 2 <= self.hosts <= self.processes:
            raise ValueError(
                f"`hosts` must be from 2 to the number of processes, {self.processes}; received "
                f"{self.hosts}; do `--hosts 2`."
            )
        if self.rate is not None:
            parse_rate(self.rate)
        if len(self.host_of_ranks) != self.processes or set(self.host_of_ranks) != set(
            range(self.hosts)
        ):
            raise ValueError(
                f"`order` must name each of the hosts 0 to {self.hosts - 1}, once for each of the "
                f"{self.processes} ranks; received {','.join(map(str, self.host_of_ranks))}; "
                "leave it out, or do `--order 0,1,0,1` for four ranks on two hosts."
            )

    @property
    def host_of_ranks(self) -> tuple[int, ...]:
        """The index of each rank's host."""
        if self.order is not None:
            return self.order
        return tuple(rank * (self.hosts or 1) // self.processes for rank in range(self.processes))

    @property
    def runs(self) -> tuple[EngineRun, ...]:
        """The runs of a round, each in processes of its own, whose ranks know hosts."""
        own = (dataclasses.replace(each, command=_RANK) for each in super().runs)
        return (*own, *(OTHERS[side] for side in self.sides if side in OTHERS))


def add_sums(commands: argparse._SubParsersAction) -> None:
    """Adds `sums` to the benchmarks."""
    add_command(
        commands,
        "sums",
        SumsOptions,
        _sums,
        help="all-reduces of tfdp beside those of other libraries, also on simulated hosts",
        description="Times all-reduces of float32 between processes on this machine, for each "
        "topology on each engine of tfdp, for MultiWorkerMirroredStrategy (stock) and, where they "
        "are installed, for PyTorch's gloo and mpi4py's Allreduce, in turn; prints tables and "
        "draws a picture.",
    )


def _sums(options: SumsOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "matplotlib"], parser)
    try:
        return run(options)
    except hosts.HostsError as error:
        parser.error(str(error))


def run(options: SumsOptions) -> int:
    """Builds the hosts, if there are to be any, and measures on them.

    Returns:
      The exit code; see :func:`tfdp.tools.bench.bench_rounds.run_rounds`.

    Raises:
      HostsError: The hosts cannot be built here; nothing was measured.
    """
    from tfdp.tools.bench import bench_rounds
    from tfdp.tools.bench.bench_tables import Bound

    with contextlib.ExitStack() as stack:
        namespaces: Sequence[str] = ()
        if options.hosts is not None:
            namespaces = stack.enter_context(hosts.hosts(options.hosts, options.rate))
        bound = Bound(
            _link_rate(namespaces),
            len(namespaces) or options.processes,
            options.processes,
            options.rate or "",
        )
        runs = [
            dataclasses.replace(
                each, command=tuple(on_hosts(namespaces, options.host_of_ranks, each.command))
            )
            for each in options.runs
        ]
        return bench_rounds.run_rounds(options, runs, bound)


def _link_rate(namespaces: Sequence[str]) -> float:
    if not namespaces:
        return link_rate.measure([], [], "127.0.0.1")
    sender, receiver = (hosts.inside(name, []) for name in namespaces[:2])
    try:
        return link_rate.measure(sender, receiver, hosts.address(1))
    except RuntimeError as error:
        raise hosts.HostsError(str(error)) from error
