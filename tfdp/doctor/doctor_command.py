"""The options of `tfdp doctor`."""

from __future__ import annotations

import argparse
import dataclasses

from tfdp.command_line import add_command, check, option


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """The choices of one examination.

    Raises:
      ValueError: A value is out of its range.

    >>> DoctorOptions(megabytes=4).large_elements
    1000000
    """

    megabytes: int = option(
        16, "size of the large all-reduce (%(default)s)", at_least=1, at_most=1000, metavar="M"
    )
    timeout_seconds: float = option(
        60.0,
        "seconds that the ranks may take to come, and a check to end (%(default)g)",
        above=0,
        metavar="S",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def large_elements(self) -> int:
        """The count of numbers (float32) in the large all-reduce."""
        return self.megabytes * 10**6 // 4


def add_doctor(commands: argparse._SubParsersAction) -> None:
    """Adds `doctor` to the commands."""
    add_command(
        commands,
        "doctor",
        DoctorOptions,
        _doctor,
        help="check versions, devices, the cluster and an all-reduce",
        description="Prints versions, devices and the cluster as the environment describes it, "
        "times an all-reduce on every rank, and says what to change. It runs alone or under any "
        "launcher (`tfdp run -n 2 -- tfdp doctor`); then rank 0 prints a line per rank.",
        epilog="Exit code 0 if every check passed, also where there are hints; 1 if one failed.",
    )


def _doctor(options: DoctorOptions, parser: argparse.ArgumentParser) -> int:
    from tfdp.doctor.examination import run

    return run(options)
