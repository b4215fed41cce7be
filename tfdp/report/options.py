"""What `tfdp report` can be asked for."""

from __future__ import annotations

import dataclasses
import pathlib

_SUFFIXES = (".html", ".htm")


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """The choices of one report; they are checked here.

    Args:
        log_dir: the log directory.
        output: the page to write; None for `report.html` in the log directory.
        compare: log directories of runs on other numbers of replicas.

    Raises:
        ValueError: the output is no HTML file or has no place, or a directory is given twice.

    Example:
        >>> ReportOptions(pathlib.Path("logs")).page.as_posix()
        'logs/report.html'
    """

    log_dir: pathlib.Path
    output: pathlib.Path | None = None
    compare: tuple[pathlib.Path, ...] = ()

    def __post_init__(self) -> None:
        if self.output is not None:
            _check_output(self.output)
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
        """Where the page is written."""
        return self.log_dir / "report.html" if self.output is None else self.output


def _check_output(output: pathlib.Path) -> None:
    if output.suffix.lower() not in _SUFFIXES or output.is_dir():
        what = "is a directory" if output.is_dir() else "does not"
        raise ValueError(
            f"`output` must be a file that ends in .html; received {str(output)!r}, which {what}; "
            f"do `--output {output.with_suffix('.html') if not output.is_dir() else 'run.html'}`."
        )
    if not output.parent.is_dir():
        raise ValueError(
            f"`output` must be in a directory that exists; received {str(output)!r}; "
            f"do `mkdir -p {output.parent}` first."
        )
