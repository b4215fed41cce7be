"""The command `tfdp report`: one HTML page of what `tfdp.callbacks.Telemetry` logged.

No module of this package loads TensorFlow or NumPy.
"""

import dataclasses
import pathlib

from tfdp.base.command_line import REQUIRED, check, option


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
