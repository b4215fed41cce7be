"""The options of `tfdp report`."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

from tfdp.command_line import REQUIRED, add_command, check, option, require


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """The choices of one report.

    Raises:
      ValueError: The output is no HTML file or has no folder, or a directory is given twice.

    >>> ReportOptions(pathlib.Path("logs")).page.as_posix()
    'logs/report.html'
    """

    log_dir: pathlib.Path = option(REQUIRED, "what to report on", flags=("LOG_DIR",))
    output: pathlib.Path | None = option(
        None,
        "where to write the page (LOG_DIR/report.html)",
        writes=(".html", ".htm"),
        metavar="FILE.html",
    )
    compare: tuple[pathlib.Path, ...] = option(
        (),
        "runs on other numbers of replicas, for the scaling efficiency",
        nargs="+",
        action="extend",
        metavar="OTHER_LOG_DIR",
    )

    def __post_init__(self) -> None:
        check(self)
        seen = {self.log_dir.resolve()}
        for directory in self.compare:
            if directory.resolve() in seen:
                raise ValueError(
                    "`compare` must name other log directories, each once; received "
                    f"{str(directory)!r} again; leave it out."
                )
            seen.add(directory.resolve())

    @property
    def page(self) -> pathlib.Path:
        """The path that the page is written to."""
        return self.log_dir / "report.html" if self.output is None else self.output


def add_report(commands: argparse._SubParsersAction) -> None:
    """Adds `report` to the commands."""
    add_command(
        commands,
        "report",
        ReportOptions,
        _report,
        help="one HTML page of what Telemetry logged",
        description="Makes one self-contained HTML page of the log directory that "
        "tfdp.callbacks.Telemetry wrote, or is still writing: curves, where each rank's steps go, "
        "who comes last, scaling, the manifest, and what to try next.",
        epilog="Exit code 0 if the page is written; 2, and no page, where something is missing.",
    )


def _report(options: ReportOptions, parser: argparse.ArgumentParser) -> int:
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
