"""What `tfdp bench allreduce` can be asked for."""

from __future__ import annotations

import dataclasses
import pathlib
import re

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
OTHERS = ("stock", "gloo")

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_RATE_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_size(text: str) -> int:
    """Bytes, from a number with a unit.

    Raises:
        ValueError: it is none, or less than one float32.

    Example:
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
    """Bits per second, from a rate as `tc` writes it.

    Raises:
        ValueError: it is none.

    Example:
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
class AllReduceOptions:
    """The choices of one benchmark run; they are checked here.

    Args:
        processes: ranks, one CPU device each.
        sides: some of the topologies' names, `"stock"` (`MultiWorkerMirroredStrategy`) and
            `"gloo"` (PyTorch's).
        sizes: bytes of float32 to be summed.
        hosts: how many hosts to build as network namespaces; None: all ranks on loopback.
        rate: what each host may send, as `tc` writes it; None: no limit.
        order: for each rank the index of its host; None: the first ranks on the first host, ...
        rounds: fresh runs of each engine.
        repeats: timed all-reduces of one size in a run.
        timeout_seconds: the deadline of each run.
        output: the picture's file.
        json: a file for the raw results, or None.

    Raises:
        ValueError: a value is out of its range, or they do not go together.

    Example:
        >>> AllReduceOptions(processes=4, hosts=2).host_of_ranks
        (0, 0, 1, 1)
    """

    processes: int = 2
    sides: tuple[str, ...] = (*TOPOLOGIES, "stock")
    sizes: tuple[int, ...] = (10**3, 10**6, 10**8)
    hosts: int | None = None
    rate: str | None = None
    order: tuple[int, ...] | None = None
    rounds: int = 3
    repeats: int = 5
    timeout_seconds: float = 600.0
    output: pathlib.Path = pathlib.Path("tfdp_allreduce.png")
    json: pathlib.Path | None = None

    def __post_init__(self) -> None:
        for side in self.sides:
            if side not in (*TOPOLOGIES, *OTHERS):
                raise ValueError(
                    f"`topology` must be one of {', '.join((*TOPOLOGIES, *OTHERS))}, all; "
                    f"received {side!r}; do `--topology all`."
                )
        for name in ("rounds", "repeats", "timeout_seconds"):
            value = getattr(self, name)
            if not value > 0:
                flag = name.removesuffix("_seconds")
                default = type(self).__dataclass_fields__[name].default
                raise ValueError(
                    f"`{flag}` must be positive; received {value}; do `--{flag} {default:g}`."
                )
        if self.processes < 2:
            raise ValueError(
                f"`processes` must be 2 or more; received {self.processes}; do `--processes 2`."
            )
        self._check_hosts()
        for name in ("output", "json"):
            path = getattr(self, name)
            if path is not None and not path.parent.is_dir():
                raise ValueError(
                    f"`{name}` must be in a directory that exists; received {str(path)!r}; "
                    f"do `mkdir -p {path.parent}`."
                )

    def _check_hosts(self) -> None:
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
        """For each rank the index of its host."""
        if self.order is not None:
            return self.order
        return tuple(rank * (self.hosts or 1) // self.processes for rank in range(self.processes))

    @property
    def engines(self) -> dict[str, tuple[str, ...]]:
        """What runs in processes of its own, and the sides that it measures."""
        own = tuple(side for side in self.sides if side in TOPOLOGIES)
        others = {side: (side,) for side in self.sides if side in OTHERS}
        return ({"tfdp": own} if own else {}) | others
