"""The page: everything that a run's report says, put into the template, and written."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdp.base import words
from tfdp.base.atomic_files import replace_text
from tfdp.tools.report import ReportOptions, exchanges, run_charts
from tfdp.tools.report.breakdown import rank_splits
from tfdp.tools.report.late_ranks import straggler, stragglers, waits
from tfdp.tools.report.log_directory import LoggedRun, attempt_rows, read_run
from tfdp.tools.report.pages import page
from tfdp.tools.report.rate_comparison import caveats, scaling
from tfdp.tools.report.run_hints import findings
from tfdp.tools.report.summary import headline, skipped, status, tiles, traffic


def write_page(options: ReportOptions) -> int:
    """Reads the logs, writes the page and prints its path.

    Returns:
      The exit code, 0.

    Raises:
      LogError: A log directory cannot be read; nothing is written then.
      OSError: A file cannot be read or written.

    >>> import pathlib
    >>> write_page(ReportOptions(pathlib.Path("no/logs")))
    Traceback (most recent call last):
    tfdp.tools.report.log_reader.LogError: `LOG_DIR` must be a directory that ... wrote, ...
    """
    read = read_run(options.log_dir)
    compared = [read_run(directory) for directory in options.compare]
    replace_text(options.page, render(read, compared, now=time.time()))
    steps = words.count(read.first.steps[-1].step, "step")
    print(f"{options.page}: {steps} of {words.count(len(read.ranks), 'rank')}")
    return 0


def render(run: LoggedRun, compared: Sequence[LoggedRun], now: float) -> str:
    """Returns the report as one HTML page, which loads nothing from anywhere.

    All text from the logs is escaped.

    Args:
      run: The run that the report is about.
      compared: The runs for the scaling efficiency, usually on other numbers of replicas.
      now: The time of the report, in seconds since 1970.

    >>> import pathlib
    >>> from tfdp.tools.report.rank_log import RankLog, Session
    >>> from tfdp.base.log_lines import StartLine, StepLine
    >>> start, step = StartLine(0, 0, 1, "<x>", 1), StepLine(0, 1, 0, 1, 8, 1.0)
    >>> log = RankLog((Session(start, 1, [step]),), (step,), (), ())
    >>> page = render(LoggedRun(pathlib.Path("logs"), (log,), None, ()), [], now=2)
    >>> page.startswith("<!doctype html>"), "<x>" in page
    (True, False)
    """
    return page(
        "report/templates/report.html.jinja",
        label=run_charts.rank_label,
        now=now,
        **_context(run, compared, now),
    )


def _context(run: LoggedRun, compared: Sequence[LoggedRun], now: float) -> dict[str, Any]:
    line, splits, waited = headline(run), rank_splits(run), waits(run)
    bars, over_time = run_charts.step_parts(run, splits)
    points = scaling([(one, headline(one)) for one in [run, *compared]]) if compared else ()
    model = (run.manifest or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else None
    sampled = any("compute" in one.split.parts for one in splits)
    return {
        "run": run,
        "title": str(name) if name else "Training run",
        "line": line,
        "status": status(line, now),
        "tiles": tiles(line),
        "findings": findings(run),
        "learning": run_charts.learning(run),
        "speed": run_charts.speed(run),
        "bars": bars,
        "over_time": over_time,
        "splits": splits,
        "sampled": sampled,
        "meets": any("meeting" in one.split.parts for one in splits),
        "waits": waited,
        "wait_bars": run_charts.wait_bars(waited),
        "straggler": straggler(waited),
        "stragglers": stragglers(waited),
        "optimizer": run_charts.optimizer(run),
        "skipped": skipped(run.first.steps),
        "traffic": traffic(run),
        "exchange_heads": (exchanges.COLLECTIVES, exchanges.WHOLE, exchanges.LOCAL),
        "attempts": attempt_rows(run.attempts),
        "attempt_bars": run_charts.attempt_bars(run.attempts),
        "compared": len(compared),
        "points": points,
        "caveats": caveats(points) if points else [],
        "efficiency": run_charts.efficiency_bars(points),
        "compute_shares": [
            (run_charts.rank_label(one.rank, one.host), one.split.share("compute"))
            for one in splits
            if "compute" in one.split.parts
        ],
        "manifest": manifest_groups(run.manifest) if run.manifest else [],
    }


def manifest_groups(manifest: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns (title, rows of (name, value)) of each part of a manifest, without what is null.

    >>> manifest_groups({"format": 1, "model": {"name": "cnn", "optimizer": {"rate": 0.1}},
    ...                  "command": ["python", "my train.py"], "data": None})
    [('Run', [('Command', "python 'my train.py'")]),
     ('Model', [('name', 'cnn'), ('optimizer.rate', '0.1')])]
    """
    simple: list[tuple[str, str]] = []
    groups = [("Run", simple)]
    for key, value in manifest.items():
        title = key.capitalize()
        if value is None or value in ({}, []) or key == "format":
            continue
        if key == "command" and isinstance(value, list):
            simple.append((title, shlex.join(map(str, value))))
        elif isinstance(value, dict):
            groups.append((title, list(_rows(value))))
        else:
            simple.append((title, _text(value)))
    return [(title, rows) for title, rows in groups if rows]


def _rows(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict) and item:
            yield from _rows(item, f"{name}.")
        elif item is not None:
            yield name, _text(item)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
