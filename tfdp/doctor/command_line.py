"""The words after `tfdp doctor`."""

from __future__ import annotations

import argparse

from tfdp.doctor.options import DoctorOptions


def add_doctor(commands: argparse._SubParsersAction) -> None:
    """Adds `doctor` to the subcommands; its function is left in `handler`."""
    parser = commands.add_parser(
        "doctor",
        help="check versions, devices, the cluster and an all-reduce",
        description="Prints versions, devices and the cluster as the environment describes it, "
        "times an all-reduce on every rank, and says what to change. It runs alone or under any "
        "launcher (`tfdp run -n 2 -- tfdp doctor`); then rank 0 prints a line per rank.",
        epilog="Exit code 0 if every check passed, also where there are hints; 1 if one failed.",
    )
    default = DoctorOptions()
    parser.add_argument(
        "--megabytes",
        type=int,
        default=default.megabytes,
        metavar="M",
        help="size of the large all-reduce (%(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=default.timeout_seconds,
        metavar="S",
        help="seconds that the ranks may take to come, and a check to end (%(default)g)",
    )
    parser.set_defaults(handler=_doctor, parser=parser)


def _doctor(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    try:
        options = DoctorOptions(megabytes=parsed.megabytes, timeout_seconds=parsed.timeout)
    except ValueError as error:
        parser.error(str(error))

    from tfdp.doctor.examination import run

    return run(options)
