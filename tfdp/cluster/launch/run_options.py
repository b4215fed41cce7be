"""The options of `tfdp run`."""

import argparse
import dataclasses
import os
import pathlib
import re
from typing import NamedTuple

from tfdp.base.command_line import REQUIRED, check, option
from tfdp.cluster.spec import split_address
from tfdp.errors import ClusterError


class Span(NamedTuple):
    """The least and the most of something.

    >>> Span(2, 4).most
    4
    """

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


def span(text: str) -> int | Span:
    """Returns the number that `text` is, or the span `MIN:MAX`.

    Raises:
      ValueError: The text is neither.

    >>> span("4"), span("2:4")
    (4, Span(least=2, most=4))
    >>> span("4:2")
    Traceback (most recent call last):
    ValueError: it must be a whole number or MIN:MAX; received '4:2'; do `2:4`.
    """
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is not None and int(found[1]) <= int(found[2]):
        return Span(int(found[1]), int(found[2]))
    fixed = f"{found[2]}:{found[1]}" if found else "2:4"
    raise ValueError(f"it must be a whole number or MIN:MAX; received {text!r}; do `{fixed}`.")


def as_span(value: int | Span) -> Span:
    """Returns a number as the span that holds nothing else.

    >>> as_span(3)
    Span(least=3, most=3)
    """
    return value if isinstance(value, Span) else Span(value, value)


# The seconds between two questions to the command of `--discover`.
EVERY_SECONDS = 10.0

# The seconds after which a run with fewer than the least ranks is given up.
JOIN_SECONDS = 600.0


def _folder(text: str) -> pathlib.Path:
    if not text:
        raise ValueError(
            "it must name a folder; received '', maybe of a variable that is not set; do "
            "`--log-dir logs`, or `--log-dir .` for this folder."
        )
    return pathlib.Path(text)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The choices of one run.

    Raises:
      ValueError: A value is out of its range.

    >>> RunOptions(processes=2, command=("train.py", "--epochs", "3")).timeout_seconds is None
    True
    """

    processes: int | Span = option(
        REQUIRED,
        "how many ranks to start on this host; MIN:MAX: as many as are available",
        flags=("-n", "--processes"),
        at_least=1,
        example="2",
        parse=span,
        metavar="N",
    )
    command: tuple[str, ...] = option(
        REQUIRED,
        "a script that ends in .py, run by this Python, or a program on the PATH; and its "
        "arguments",
        flags=("COMMAND",),
        nargs=argparse.REMAINDER,
    )
    nodes: int | Span | None = option(
        None,
        "run on so many hosts, with the same command on each and -n ranks on each; MIN:MAX: on as "
        "many as join",
        at_least=1,
        example="2",
        parse=span,
        metavar="N",
    )
    rendezvous: str | None = option(
        None,
        "with --nodes, where the launchers meet: a port of one of the hosts, whose launcher serves "
        "it",
        metavar="HOST:PORT",
    )
    engine: str = option(
        "auto",
        "the engine that sums gradients: mpi starts the ranks by the installed mpiexec and needs "
        "mpi4py; auto and tensorflow start them directly, for TensorFlow's engine (%(default)s)",
        choices=("auto", "tensorflow", "mpi"),
    )
    devices_per_process: int | None = option(
        None,
        "split the CPU of each rank into D logical devices",
        at_least=1,
        example="1",
        metavar="D",
    )
    gpus_per_process: int | None = option(
        None,
        "give each rank K of the visible GPUs; by default all ranks get equally many",
        at_least=1,
        example="1",
        metavar="K",
    )
    log_dir: pathlib.Path | None = option(
        None,
        "write rank-0.log, rank-1.log, ... there; logs of an earlier run move to DIR/earlier-1, "
        "...",
        parse=_folder,
        metavar="DIR",
    )
    max_restarts: int = option(
        0,
        "start all ranks again after a failure, at most R times (%(default)s); a training with a "
        "Checkpoint continues from there",
        at_least=0,
        example="3",
        metavar="R",
    )
    restart_window_seconds: float | None = option(
        None,
        "count only the restarts of the last S seconds; by default all of the run",
        flags=("--restart-window",),
        above=0,
        example="3600",
        metavar="S",
    )
    discover: str | None = option(
        None,
        "with -n MIN:MAX, a command that prints how many ranks may run here now; tfdp run repeats "
        "it, and the training stops at a checkpoint to continue with that number",
        metavar="CMD",
    )
    discover_every_seconds: float | None = option(
        None,
        "seconds between two runs of that command (10)",
        flags=("--discover-every",),
        above=0,
        example="10",
        metavar="S",
    )
    join_timeout_seconds: float | None = option(
        None,
        "end the run when fewer than MIN are available for S seconds (600)",
        above=0,
        example="600",
        metavar="S",
    )
    step_timeout_seconds: float | None = option(
        None,
        "end the run when a training with a Checkpoint reaches no step, nor a batch of its "
        "evaluation, in S seconds; choose more than the first step's compilation takes",
        above=0,
        example="1800",
        metavar="S",
    )
    timeout_seconds: float | None = option(
        None,
        "end all ranks after S seconds, restarts included (exit code 124)",
        above=0,
        example="3600",
        metavar="S",
    )
    dry_run: bool = option(
        False,
        "print each rank's command and its environment variables, and start nothing",
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.command:
            raise ValueError(
                f"`COMMAND` must follow the options; received none; "
                f"do `tfdp run -n {self.ranks} train.py`."
            )
        if self.restart_window_seconds is not None and not self.max_restarts:
            raise ValueError(
                "`restart-window` must come with restarts; received no `max-restarts`; do "
                "`--max-restarts 3`, or leave it out."
            )
        self._check_nodes()
        self._check_elastic()
        if self.log_dir is not None and os.path.exists(self.log_dir) and not self.log_dir.is_dir():
            raise ValueError(
                f"`log-dir` must be a folder, or a path where one can be made; "
                f"received {str(self.log_dir)!r}, a file; do `--log-dir {self.log_dir}-logs`."
            )

    @property
    def ranks(self) -> Span:
        """The least and the most ranks of a host."""
        return as_span(self.processes)

    @property
    def is_elastic(self) -> bool:
        """Whether the number of ranks of a host may change."""
        return isinstance(self.processes, Span)

    @property
    def span_of_nodes(self) -> Span:
        """The least and the most hosts."""
        return as_span(self.nodes or 1)

    def _check_nodes(self) -> None:
        if (self.nodes is None) != (self.rendezvous is None):
            raise ValueError(
                f"`nodes` and `rendezvous` must come together; received --nodes {self.nodes} and "
                f"--rendezvous {self.rendezvous}; do `--nodes 2 --rendezvous node-1:29400`."
            )
        if self.rendezvous is None:
            return
        try:
            split_address(self.rendezvous, "`rendezvous`")
        except ClusterError as error:
            raise ValueError(str(error)) from None
        if self.engine == "mpi" or self.dry_run:
            received = "--engine mpi" if self.engine == "mpi" else "--dry-run"
            raise ValueError(
                f"`nodes` must come without `--engine mpi`, whose `mpirun` starts the ranks of all "
                f"hosts, and without `--dry-run`; received {received}; leave one of the two out."
            )

    def _check_elastic(self) -> None:
        for name, given in {"-n": self.processes, "--nodes": self.nodes}.items():
            if isinstance(given, Span) and not self.max_restarts:
                raise ValueError(
                    f"`{name} MIN:MAX` must come with restarts, by which those that are left go "
                    f"on; received {name} {given} and no `max-restarts`; do `--max-restarts 3`."
                )
        if self.discover is not None and not self.is_elastic:
            raise ValueError(
                f"`discover` must come with `-n MIN:MAX`; received -n {self.ranks}; do "
                f"`-n 1:{self.ranks.most}`, or leave it out."
            )
        if self.discover_every_seconds is not None and self.discover is None:
            raise ValueError(
                "`discover-every` must come with `discover`; received none; do "
                "`--discover 'cat slots'`, or leave it out."
            )
        if self.join_timeout_seconds is not None and not self.is_elastic and self.nodes is None:
            raise ValueError(
                f"`join-timeout` must come with `-n MIN:MAX` or `--nodes`; received -n "
                f"{self.ranks}; do `-n 1:{self.ranks.most}`, or leave it out."
            )
