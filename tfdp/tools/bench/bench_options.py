"""The options of `tfdp bench`, and the processes that they mean."""

import dataclasses
import pathlib
import re
import sys

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
ENGINES = ("tensorflow", "mpi")

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


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


@dataclasses.dataclass(frozen=True)
class EngineRun:
    """The sides that share processes, and how a rank of theirs is started.

    Args:
      engine: What sums: an engine of tfdp, or another.
      sides: The topologies, or the engine itself.
      needs: The module that must be installed beside TensorFlow.
      launcher: The options of `tfdp run`.
      command: The words that start a rank, before the path of its plan.
    """

    engine: str
    sides: tuple[str, ...]
    needs: str = "tensorflow"
    launcher: tuple[str, ...] = ()
    command: tuple[str, ...] = (sys.executable, "-m", "tfdp.tools.bench.bench_rank")


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """The choices of one benchmark run.

    Raises:
      ValueError: A value is out of its range, or the values do not go together.

    >>> [(run.engine, run.sides) for run in BenchOptions(sides=("ring",)).runs]
    [('tensorflow', ('ring',)), ('mpi', ('ring',))]
    """

    processes: int = option(2, "ranks, one CPU device each (%(default)s)", at_least=2, metavar="N")
    sides: tuple[str, ...] = option(
        TOPOLOGIES,
        f"with commas between: {', '.join(TOPOLOGIES)}; or all (all)",
        flags=("--topology",),
        choices=TOPOLOGIES,
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

    @property
    def runs(self) -> tuple[EngineRun, ...]:
        """The runs of a round, each in processes of its own."""
        sides = tuple(side for side in self.sides if side in TOPOLOGIES)
        made = {
            "tensorflow": EngineRun("tensorflow", sides),
            "mpi": EngineRun("mpi", sides, "mpi4py", ("--engine", "mpi")),
        }
        return tuple(made[engine] for engine in self.engines) if sides else ()
