"""The words after `tfdp run`."""

from __future__ import annotations

import argparse
import pathlib
import sys

from tfdp.launch.command import CommandError
from tfdp.launch.launcher import run
from tfdp.launch.options import RunOptions


def add_run(commands: argparse._SubParsersAction) -> None:
    """Adds `run` to the subcommands; its function is left in `handler`.

    The options end where the command begins: `tfdp run -n 2 train.py --timeout 5` gives `--timeout`
    to `train.py`. A `--` before the command is allowed and dropped.
    """
    parser = commands.add_parser(
        "run",
        help="start a training script in N processes on this host",
        usage="%(prog)s -n N [--devices-per-process D] [--log-dir DIR] [--timeout S] [--dry-run] "
        "[--] COMMAND [ARG ...]",
        description="Starts COMMAND in N processes on this host, as one cluster: every process "
        "gets its TF_CONFIG and its share of the cores. Output lines begin with the rank. If one "
        "rank fails, the others are ended, and the first failure is reported last.",
        allow_abbrev=False,  # else an option of COMMAND could be an ambiguous one of ours
    )
    parser.add_argument(
        "-n", "--processes", type=int, required=True, metavar="N", help="how many ranks to start"
    )
    parser.add_argument(
        "--devices-per-process",
        type=int,
        metavar="D",
        help="split the CPU of each rank into D logical devices",
    )
    parser.add_argument(
        "--log-dir",
        type=_folder,
        metavar="DIR",
        help="write rank-0.log, rank-1.log, ... there; logs of an earlier run move to "
        "DIR/earlier-1, ...",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="end all ranks after S seconds (exit code 124)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print each rank's command and what is set in its environment, and start nothing",
    )
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="a script that ends in .py, run by this Python, or a program on the PATH; and its "
        "arguments",
    )
    parser.set_defaults(handler=_run, parser=parser)


def _folder(text: str) -> pathlib.Path:
    if not text:
        raise argparse.ArgumentTypeError(
            "it must name a folder; received '', maybe of a variable that is not set; do "
            "`--log-dir logs`, or `--log-dir .` for this folder."
        )
    return pathlib.Path(text)


def _run(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    words = parsed.words[1:] if parsed.words[:1] == ["--"] else parsed.words
    try:
        options = RunOptions(
            processes=parsed.processes,
            command=tuple(words),
            devices_per_process=parsed.devices_per_process,
            log_dir=parsed.log_dir,
            timeout_seconds=parsed.timeout,
            dry_run=parsed.dry_run,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        return run(options)
    except CommandError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a folder that cannot be written, no free port, no more processes
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
