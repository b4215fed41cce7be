"""The tiles at the top of the page: the state of the run and its main numbers, in words."""

from __future__ import annotations

from tfdp.base.words import count, duration, moment, number
from tfdp.tools.report.summary import Headline

_MOST_METRICS = 4


def status(line: Headline, now: float) -> tuple[str, str]:
    """Says how the run ended: a word, and a sentence.

    Args:
      line: The main numbers of the run.
      now: The time of the page, in seconds since 1970.

    >>> from types import SimpleNamespace as Fake
    >>> status(Fake(ended=False, last_time=0.0), now=90.0)
    ('no end', 'The logs have no end: the run was cut off, or goes on. The last line is of
    1970-01-01 00:00:00 UTC, 1 min 30 s before this page.')
    """
    if line.ended:
        return "ended", f"Training ended at {moment(line.last_time)}."
    return "no end", (
        "The logs have no end: the run was cut off, or goes on. The last line is of "
        f"{moment(line.last_time)}, {duration(max(0.0, now - line.last_time))} before this page."
    )


def tiles(line: Headline) -> list[tuple[str, str, str]]:
    """Returns (name, value, remark) of each headline number.

    >>> line = Headline(512.3, 0.125, 64.0, 30, 1, 3, 4, 2, ("a", "b"), 9.0, True, 9.0, False,
    ...                 {"loss": 0.25})
    >>> tiles(line)[0], tiles(line)[-1]
    (('examples per second', '512.3', '64 a step'), ('loss', '0.25', 'after epoch 1'))
    """
    planned = "" if line.epochs_planned is None else f" of {line.epochs_planned}"
    hosts = line.hosts[0] if len(line.hosts) == 1 else count(len(line.hosts), "host")
    kind = "median of first steps" if line.only_first else "median"
    found = [
        (
            "examples per second",
            number(line.examples_per_second),
            f"{number(line.examples_per_step)} a step",
        ),
        ("step time", duration(line.step_seconds), kind),
        ("epochs", f"{line.epochs}{planned}", f"{count(line.steps, 'step')}"),
        ("replicas", str(line.replicas), f"{count(line.ranks, 'rank')} on {hosts}"),
        ("duration", duration(line.duration_seconds), "from the start to the last line"),
    ]
    names = sorted(line.logs, key=lambda name: ("loss" not in name, name.startswith("val_"), name))
    losses = [name for name in names if "loss" in name and name != "loss_scale"]
    metrics = [name for name in names if "loss" not in name]
    metrics = [name for name in metrics if name not in ("learning_rate", "skipped_steps")]
    shown = (losses[:2] + metrics)[:_MOST_METRICS]
    return found + [(name, number(line.logs[name]), f"after epoch {line.epochs}") for name in shown]
