"""The command `tfdp`, with its subcommands.

Nothing heavy is imported until a subcommand runs: `tfdp --help` answers without TensorFlow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import tfdp
from tfdp.bench.bench_command import add_bench
from tfdp.data.index_command import add_data
from tfdp.demo.demo_command import add_demo
from tfdp.doctor.doctor_command import add_doctor
from tfdp.launch.run_command import add_run
from tfdp.report.report_command import add_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: The words after `tfdp`; by default those of this process.

    Returns:
      The exit code: 0; 1 where the demo's weights differ, a benchmark's process failed or a check
      of `doctor` did; 2 where the user's request cannot be carried out, with a message and no
      traceback; of `run`, and of a demo whose rank failed, see :func:`tfdp.launch.run`.

    Raises:
      SystemExit: `--help` or `--version` (0), or words that cannot be parsed (2).
    """
    parsed = build_parser().parse_args(arguments)
    return parsed.handler(parsed)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all subcommands; each leaves its function in `handler`."""
    parser = argparse.ArgumentParser(
        prog="tfdp",
        description="Data-parallel training for Keras 3: N replicas train like one device.",
    )
    parser.add_argument("--version", action="version", version=f"tfdp {tfdp.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in (add_demo, add_bench, add_data, add_run, add_doctor, add_report):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
