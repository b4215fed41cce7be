"""The options of `tfdp run`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib

from tfdp.command_line import REQUIRED, check, option


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

    processes: int = option(
        REQUIRED,
        "how many ranks to start",
        flags=("-n", "--processes"),
        at_least=1,
        example="2",
        metavar="N",
    )
    command: tuple[str, ...] = option(
        REQUIRED,
        "a script that ends in .py, run by this Python, or a program on the PATH; and its "
        "arguments",
        flags=("COMMAND",),
        nargs=argparse.REMAINDER,
    )
    engine: str = option(
        "auto",
        "what sums gradients: mpi starts the ranks by the installed mpiexec and needs mpi4py; auto "
        "and tensorflow start them directly, for TensorFlow's own (%(default)s)",
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
        "give each rank K of the visible GPUs; by default as many as all can have alike",
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
        "start all ranks again after a failure, at most R times (%(default)s); a training goes on "
        "where its own checkpoint says",
        at_least=0,
        example="3",
        metavar="R",
    )
    restart_window_seconds: float | None = option(
        None,
        "count restarts of the last S seconds alone; by default all of the run",
        flags=("--restart-window",),
        above=0,
        example="3600",
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
        "print each rank's command and what is set in its environment, and start nothing",
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.command:
            raise ValueError(
                f"`COMMAND` must follow the options; received none; "
                f"do `tfdp run -n {self.processes} train.py`."
            )
        if self.restart_window_seconds is not None and not self.max_restarts:
            raise ValueError(
                "`restart-window` must come with restarts; received no `max-restarts`; do "
                "`--max-restarts 3`, or leave it out."
            )
        if self.log_dir is not None and os.path.exists(self.log_dir) and not self.log_dir.is_dir():
            raise ValueError(
                f"`log-dir` must be a folder, or a path where one can be made; "
                f"received {str(self.log_dir)!r}, a file; do `--log-dir {self.log_dir}-logs`."
            )
