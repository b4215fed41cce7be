"""The words after `tfdp report`."""

from __future__ import annotations

import argparse
import pathlib

from tfdp.arguments import require
from tfdp.report.options import ReportOptions


def add_report(commands: argparse._SubParsersAction) -> None:
    """Adds `report` to the subcommands; its function is left in `handler`."""
    parser = commands.add_parser(
        "report",
        help="one HTML page of what Telemetry logged",
        description="Makes one self-contained HTML page of the log directory that "
        "tfdp.callbacks.Telemetry wrote, or is still writing: curves, where each rank's steps go, "
        "who comes last, scaling, the manifest, and what to try next.",
        epilog="Exit code 0 if the page is written; 2, and no page, where something is missing.",
    )
    parser.add_argument("log_dir", type=pathlib.Path, metavar="LOG_DIR", help="what to report on")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="FILE.html",
        help="where to write the page (LOG_DIR/report.html)",
    )
    parser.add_argument(
        "--compare",
        type=pathlib.Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="OTHER_LOG_DIR",
        help="runs on other numbers of replicas, for the scaling efficiency",
    )
    parser.set_defaults(handler=_report, parser=parser)


def _report(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    try:
        options = ReportOptions(parsed.log_dir, parsed.output, tuple(parsed.compare))
    except ValueError as error:
        parser.error(str(error))
    require(["jinja2", "matplotlib"], parser)

    from tfdp.report.log_values import LogError
    from tfdp.report.page import write_page

    try:
        return write_page(options)
    except LogError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(
            f"`LOG_DIR` must be readable and the page's directory writable; received: {error}; "
            "mend the permissions, or do `--output FILE.html`."
        )
