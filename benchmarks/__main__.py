"""The command line `python -m benchmarks NAME`, for the root of a clone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.convergence.convergence_command import add_convergence
from benchmarks.data.data_command import add_data
from benchmarks.equivalence import add_equivalence
from benchmarks.everything import add_all
from benchmarks.fit import add_fit
from benchmarks.optimizers import add_optimizers
from benchmarks.telemetry import add_telemetry
from benchmarks.versions import add_versions


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: The words after `python -m benchmarks`; by default those of this process.

    Returns:
      The exit code: 0; 1 where a process failed or results that must be equal differ; 2 where the
      request cannot be carried out.
    """
    parsed = build_parser().parse_args(arguments)
    return parsed.handler(parsed)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all benchmarks; each leaves its function in `handler`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Prints the tables of README and docs; benchmarks/README.md says which is "
        "whose.",
    )
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    for add in (
        add_all,
        add_convergence,
        add_data,
        add_equivalence,
        add_fit,
        add_optimizers,
        add_telemetry,
        add_versions,
    ):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
