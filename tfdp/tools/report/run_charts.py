"""The charts of a run: learning, speed, parts of a step, waits, efficiency, optimizer, attempts."""

import math
from collections.abc import Sequence
from typing import Any

from tfdp.base.log_lines import AttemptLine
from tfdp.base.words import count, duration, percent
from tfdp.tools.report.axes import Points
from tfdp.tools.report.breakdown import RankSplit, over_time
from tfdp.tools.report.charts import Chart, Series, bar_chart, line_chart
from tfdp.tools.report.late_ranks import Wait
from tfdp.tools.report.log_directory import LoggedRun, steps_of
from tfdp.tools.report.rank_log import steady
from tfdp.tools.report.rate_comparison import Point
from tfdp.tools.report.summary import curves

PART_NAMES = {
    "input": "input wait",
    "compute": "compute",
    "meeting": "waiting for numbers",
    "communication": "exposed communication",
    "other": "other",
    "rest": "rest of the step",
}

# Values above 0 of which the largest is so many times the least have a logarithmic axis.
_WIDE = 50

_WELL, _STOPPED = 0, 75  # at a checkpoint, to go on

_ATTEMPT_NAMES = {"compute": "ended well", "input": "stopped at a checkpoint", "wait": "failed"}


def learning(run: LoggedRun) -> list[Chart]:
    """Draws losses and metrics by epoch, and the loss by step.

    >>> from types import SimpleNamespace as Fake
    >>> from tfdp.base.log_lines import EpochLine, StepLine
    >>> epochs = (EpochLine(0, 0, 1, 1.0, {"loss": 2.0, "auc": 0.5}),)
    >>> log = Fake(epochs=epochs, steps=(StepLine(0, 1, 0, 1, 8, 1.0, loss=2.0),), restarts=())
    >>> [chart.title for chart in learning(Fake(first=log))]
    ['loss', 'Loss by step', 'auc']
    """
    charts = [
        line_chart(
            curve.name,
            [
                Series("training", curve.training, "s0"),
                Series("validation", curve.validation, "s1", dashed=True),
            ],
            x_label="epoch",
            logarithmic_from=_WIDE if "loss" in curve.name else math.inf,
        )
        for curve in curves(run.first)
    ]
    note = "As Keras logs it: within an epoch the mean of its steps so far."
    by_step = _by_step(run, "Loss by step", "loss", "s0", logarithmic_from=_WIDE, note=note)
    charts.insert(1, by_step)
    return [chart for chart in charts if chart is not None]


def speed(run: LoggedRun) -> list[Chart]:
    """Draws examples per second and the time of a step, of steps that are :func:`steady`.

    >>> from types import SimpleNamespace as Fake
    >>> from tfdp.base.log_lines import StepLine
    >>> log = Fake(sessions=(), steps=(StepLine(0, 1, 0, 1, None, 1.0),), restarts=())
    >>> [chart.title for chart in speed(Fake(first=log))]
    ['Step time']
    """
    steps = steady(run.first)
    counted = [(s.step, s.examples, s.seconds) for s in steps if s.examples is not None]
    rates = [(step, examples / seconds) for step, examples, seconds in counted if seconds > 0]
    times = [(s.step, 1e3 * s.seconds / s.steps) for s in steps]
    charts = [
        _by_step(run, "Examples per second", rates, "s0", zero=True),
        _by_step(run, "Step time", times, "s3", name="milliseconds", unit="ms", zero=True),
    ]
    return [chart for chart in charts if chart is not None]


def step_parts(run: LoggedRun, splits: Sequence[RankSplit]) -> tuple[Chart | None, Chart | None]:
    """Draws each rank's step as a bar, and the median of the ranks over time.

    >>> from types import SimpleNamespace as Fake
    >>> from tfdp.tools.report.breakdown import Split
    >>> run = Fake(ranks=(), first=Fake(restarts=()))
    >>> bars, chart = step_parts(run, [RankSplit(0, "a", Split({"compute": 0.01}), 5)])
    >>> bars.rows, chart
    ((('rank 0 on a', '10 ms'),), None)
    """
    samples = over_time(run)
    bars = bar_chart(
        "A step on each rank",
        [(rank_label(one.rank, one.host), one.split.parts) for one in splits],
        PART_NAMES,
        words=duration,
    )
    points = {
        part: [(step, 1e3 * split.parts[part]) for step, split in samples if part in split.parts]
        for part in PART_NAMES
    }
    lines = line_chart(
        "A step over time",
        [Series(name, points[part], part) for part, name in PART_NAMES.items()],
        x_label="step",
        unit="ms, median of the ranks",
        zero=True,
        marks=run.first.restarts,
    )
    return bars, lines if len(samples) > 1 else None


def wait_bars(found: Sequence[Wait]) -> Chart | None:
    """Draws how long each rank waits for the others.

    >>> wait_bars([Wait(0, "a", 0.01, 0.0, 1, 2)]).rows
    (('rank 0 on a', '10 ms'),)
    """
    return bar_chart(
        "Waiting for the other ranks",
        [(rank_label(wait.rank, wait.host), {"wait": wait.wait_seconds}) for wait in found],
        {"wait": "wait"},
        words=duration,
    )


def efficiency_bars(points: Sequence[Point]) -> Chart | None:
    """Draws the efficiency of each run.

    >>> import pathlib
    >>> from types import SimpleNamespace as Fake
    >>> efficiency_bars([Point(pathlib.Path("logs"), Fake(replicas=4), 3.0, 0.75, 7)]).rows
    (('4 replicas (logs)', '75%'),)
    """
    return bar_chart(
        "Examples per second and replica, relative to the fewest replicas",
        [
            (
                f"{count(point.line.replicas, 'replica')} ({point.directory})",
                {"compute": point.efficiency},
            )
            for point in points
        ],
        {"compute": "efficiency"},
        words=percent,
        of="run",
    )


def optimizer(run: LoggedRun) -> list[Chart]:
    """Draws norm, trust ratios, compression error, scale, skipped steps, staleness, where logged.

    >>> from types import SimpleNamespace as Fake
    >>> from tfdp.base.log_lines import StepLine
    >>> steps = (StepLine(0, 1, 0, 1, 8, 1.0, gradient_norm=2.0),)
    >>> log = Fake(steps=steps, epochs=(), restarts=())
    >>> [chart.title for chart in optimizer(Fake(first=log))]
    ['Gradient norm']
    """
    ratios = [(step, step.trust_ratios) for step in run.first.steps if step.trust_ratios]
    middle = [(s.step, r["median"]) for s, r in ratios if {"min", "median", "max"} <= r.keys()]
    ends = [(r["min"], r["max"]) for _, r in ratios if {"min", "median", "max"} <= r.keys()]
    total, skipped = 0, []
    for step in run.first.steps:
        if step.skipped_steps is not None:
            total += step.skipped_steps
            skipped.append((step.step, float(total)))
    charts = [
        _by_step(run, "Gradient norm", "gradient_norm", "s2", logarithmic_from=_WIDE),
        _by_step(
            run,
            "Trust ratios",
            middle,
            "s3",
            name="median of the layers",
            band=ends,
            logarithmic_from=_WIDE,
            note="The band goes from the least to the largest of the layers.",
        ),
        _by_step(run, "Compression error", "compression_error", "s2", zero=True),
        _by_step(run, "Loss scale", "loss_scale", "s1", logarithmic_from=_WIDE),
        _by_step(run, "Skipped steps so far", skipped, "s1", name="skipped steps", zero=True)
        if total
        else None,
        _staleness(run),
    ]
    return [chart for chart in charts if chart is not None]


def _staleness(run: LoggedRun) -> Chart | None:
    """Draws how late changes came to their home, of the first rank, by epoch."""
    late = [(line.epoch, line.staleness) for line in run.first.epochs if line.staleness]
    found = [(epoch, sorted((int(n), c) for n, c in counts.items() if c)) for epoch, counts in late]
    found = [(epoch, counts) for epoch, counts in found if counts]
    return line_chart(
        "Staleness of changes",
        [
            Series(
                "median",
                [(epoch, _quantile(counts, 0.5)) for epoch, counts in found],
                "s0",
                band=[(counts[0][0], counts[-1][0]) for _, counts in found],
            ),
            Series("90 %", [(epoch, _quantile(counts, 0.9)) for epoch, counts in found], "s1"),
        ],
        x_label="epoch",
        zero=True,
        note="How many changes of other ranks came before, since a rank had taken the weights.",
    )


def _quantile(counts: Sequence[tuple[int, float]], part: float) -> float:
    """Returns the least number below which, or at which, such a part of all is.

    >>> _quantile([(0, 5), (1, 4), (7, 1)], 0.5), _quantile([(0, 5), (1, 4), (7, 1)], 0.95)
    (0, 7)
    """
    below, total = 0.0, sum(times for _, times in counts)
    for number, times in counts:
        below += times
        if below >= part * total:
            return number
    return counts[-1][0]


def rank_label(rank: int, host: str) -> str:
    """Returns the name of a rank.

    >>> rank_label(3, "node-1")
    'rank 3 on node-1'
    """
    return f"rank {rank} on {host}"


def _by_step(
    run: LoggedRun,
    title: str,
    points: Points | str,
    ink: str,
    name: str = "",
    band: Sequence[tuple[float, float]] | None = None,
    **options: Any,
) -> Chart | None:
    """Returns one line over steps, of points or of a field of steps, with the restarts."""
    if isinstance(points, str):
        found = [(step.step, getattr(step, points)) for step in run.first.steps]
        points = [(step, value) for step, value in found if value is not None]
    series = [Series(name or title.removesuffix(" by step").lower(), points, ink, band=band)]
    return line_chart(title, series, x_label="step", marks=run.first.restarts, **options)


def attempt_bars(attempts: Sequence[AttemptLine]) -> Chart | None:
    """Draws how long each attempt took, and how it ended.

    >>> from tfdp.base.log_lines import AttemptLine
    >>> attempt_bars([AttemptLine(0, 4, 60, 1, 9, 137, "rank 3 of 4 failed first.")]).rows
    (('1. 4 ranks, steps 1–9', '1 min 0 s'),)
    """

    def part(code: int) -> str:
        return {_WELL: "compute", _STOPPED: "input"}.get(code, "wait")

    return bar_chart(
        "Attempts",
        [
            (
                f"{number}. {count(one.ranks, 'rank')}, steps {steps_of(one)}",
                {part(one.code): one.seconds},
            )
            for number, one in enumerate(attempts, 1)
        ],
        _ATTEMPT_NAMES,
        words=duration,
        of="attempt",
    )
