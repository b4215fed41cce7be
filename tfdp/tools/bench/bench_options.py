"""The options of `tfdp bench`."""

import dataclasses
import pathlib
import re

from tfdp.base.command_line import check, option

TOPOLOGIES = (
    "native",
    "direct",
    "halving_doubling",
    "hierarchical",
    "ring",
    "torus",
    "tree",
    "auto",
)
OTHERS = ("stock", "gloo", "mpi4py", "graph")
ENGINES = ("tensorflow", "mpi")

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_RATE_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_size(text: str) -> int:
    """Returns bytes, from a number with a unit.

    Raises:
      ValueError: The text is no such number, or less than one float32.

    >>> parse_size("1KB"), parse_size("2 MiB"), parse_size("64")
    (1000, 2097152, 64)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper() or "B") if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 4:
        raise ValueError(
            "`sizes` must be of 4 bytes or more, in B, KB, MB, GB, KiB, MiB or GiB; received "
            f"{text!r}; do `--sizes 1KB,1MB,100MB`."
        )
    return size


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
class BenchOptions:
    """The choices of one benchmark run.

    Raises:
      ValueError: A value is out of its range, or the values do not go together.

    >>> BenchOptions(processes=4, hosts=2).host_of_ranks
    (0, 0, 1, 1)
    >>> BenchOptions(sides=("ring", "gloo")).runs
    {'tensorflow': ('ring',), 'mpi': ('ring',), 'gloo': ('gloo',)}
    """

    processes: int = option(2, "ranks, one CPU device each (%(default)s)", at_least=2, metavar="N")
    sides: tuple[str, ...] = option(
        (*TOPOLOGIES, *OTHERS),
        f"with commas between: {', '.join((*TOPOLOGIES, *OTHERS))} (mpi4py called by a "
        "TensorFlow graph); or all (all)",
        flags=("--topology",),
        choices=(*TOPOLOGIES, *OTHERS),
        metavar="NAMES",
    )
    engines: tuple[str, ...] = option(
        ENGINES,
        "tfdp's engines, each with all topologies, with a comma between (tensorflow,mpi)",
        flags=("--engine",),
        choices=ENGINES,
        metavar="ENGINES",
    )
    sizes: tuple[int, ...] = option(
        (10**3, 10**6, 10**8),
        "with commas between (1KB,1MB,100MB)",
        parse=parse_size,
        metavar="SIZES",
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
    rounds: int = option(3, "fresh runs of each engine (%(default)s)", at_least=1)
    repeats: int = option(5, "timed ones in a run (%(default)s)", at_least=1)
    timeout_seconds: float = option(600.0, "seconds for each run (%(default)g)", above=0)
    output: pathlib.Path = option(
        pathlib.Path("tfdp_allreduce.png"),
        "where to draw the times (%(default)s)",
        writes=(),
        metavar="PATH.png",
    )
    json: pathlib.Path | None = option(None, "write the raw results", writes=(), metavar="FILE")

    def __post_init__(self) -> None:
        check(self)
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
    def runs(self) -> dict[str, tuple[str, ...]]:
        """The sides by what measures them: an engine of tfdp, or another all-reduce.

        Each runs in processes of its own.
        """
        own = tuple(side for side in self.sides if side in TOPOLOGIES)
        others = {side: (side,) for side in self.sides if side in OTHERS}
        return (dict.fromkeys(self.engines, own) if own else {}) | others
