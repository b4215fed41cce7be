"""The options of `tfdp run`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys

from tfdp.command_line import REQUIRED, add_command, check, option


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
    devices_per_process: int | None = option(
        None,
        "split the CPU of each rank into D logical devices",
        at_least=1,
        example="1",
        metavar="D",
    )
    log_dir: pathlib.Path | None = option(
        None,
        "write rank-0.log, rank-1.log, ... there; logs of an earlier run move to DIR/earlier-1, "
        "...",
        parse=_folder,
        metavar="DIR",
    )
    timeout_seconds: float | None = option(
        None,
        "end all ranks after S seconds (exit code 124)",
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
        if self.log_dir is not None and os.path.exists(self.log_dir) and not self.log_dir.is_dir():
            raise ValueError(
                f"`log-dir` must be a folder, or a path where one can be made; "
                f"received {str(self.log_dir)!r}, a file; do `--log-dir {self.log_dir}-logs`."
            )


def add_run(commands: argparse._SubParsersAction) -> None:
    """Adds `run` to the commands.

    The options end where the command begins: `tfdp run -n 2 train.py --timeout 5` gives `--timeout`
    to `train.py`. A `--` before the command is allowed and dropped.
    """
    add_command(
        commands,
        "run",
        RunOptions,
        _run,
        help="start a training script in N processes on this host",
        usage="%(prog)s -n N [--devices-per-process D] [--log-dir DIR] [--timeout S] [--dry-run] "
        "[--] COMMAND [ARG ...]",
        description="Starts COMMAND in N processes on this host, as one cluster: every process "
        "gets its TF_CONFIG and its share of the cores. Output lines begin with the rank. If one "
        "rank fails, the others are ended, and the first failure is reported last.",
        allow_abbrev=False,  # else an option of COMMAND could be an ambiguous one of ours
    )


def _run(options: RunOptions, parser: argparse.ArgumentParser) -> int:
    from tfdp import launch
    from tfdp.launch.command import CommandError

    try:
        return launch.run(options)
    except CommandError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a folder that cannot be written, no free port, no more processes
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
