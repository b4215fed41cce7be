"""Reads, renders and writes a report."""

from __future__ import annotations

import time

from tfdp.files import replace_text
from tfdp.report.page import render
from tfdp.report.reading import read_run
from tfdp.report.report_command import ReportOptions
from tfdp.report.words import count


def run(options: ReportOptions) -> int:
    """Writes the page and says where it is.

    Returns:
        The exit code, 0.

    Raises:
        LogError: a log directory cannot be read; then nothing is written.
        OSError: a file cannot be read or written.

    Example:
        >>> import pathlib
        >>> run(ReportOptions(pathlib.Path("no/logs")))
        Traceback (most recent call last):
        tfdp.report.fields.LogError: `LOG_DIR` must be a directory that ... wrote, ...
    """
    read = read_run(options.log_dir)
    compared = [read_run(directory) for directory in options.compare]
    replace_text(options.page, render(read, compared, now=time.time()))
    steps, ranks = count(read.first.steps[-1].step, "step"), count(len(read.ranks), "rank")
    print(f"{options.page}: {steps} of {ranks}")
    return 0
