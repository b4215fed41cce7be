"""The numbers at the top of the report, and the curves: pure functions of the logs."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from tfdp.base.log_lines import StepLine
from tfdp.base.words import count, duration, moment, number
from tfdp.tools.report.log_directory import LoggedRun
from tfdp.tools.report.rank_log import RankLog, only_first, steady

_VALIDATION = "val_"
_MOST_METRICS = 4  # among the headline numbers


@dataclasses.dataclass(frozen=True)
class Headline:
    """The main numbers of a run; times are rank 0's.

    Args:
      examples_per_second: The examples of all replicas over the time of their :func:`steady` steps;
        None where examples are not counted.
      step_seconds: The median time of a step.
      examples_per_step: The median number of examples; None where examples are not counted.
      steps: The number of the last step.
      epochs: The number of complete epochs.
      epochs_planned: The epoch up to which `fit` was asked to train, if known.
      replicas: The number of replicas of all ranks.
      ranks: The number of processes.
      hosts: The names of the hosts, each once.
      duration_seconds: The time from each start to its last line, summed.
      ended: Whether training ended by itself.
      last_time: The time of the last line, in seconds since 1970.
      only_first: Whether there are no other times than those of first steps; see :func:`steady`.
      logs: The logs of the last epoch.
    """

    examples_per_second: float | None
    step_seconds: float
    examples_per_step: float | None
    steps: int
    epochs: int
    epochs_planned: int | None
    replicas: int
    ranks: int
    hosts: tuple[str, ...]
    duration_seconds: float
    ended: bool
    last_time: float
    only_first: bool
    logs: Mapping[str, float]


def headline(run: LoggedRun) -> Headline:
    """Returns the run's headline numbers.

    >>> from tfdp.tools.report.rank_log import Session
    >>> from tfdp.base.log_lines import StartLine
    >>> import pathlib
    >>> start = StartLine(time=0, rank=0, world_size=1, host="a", replicas=4)
    >>> steps = tuple(StepLine(n, n, 0, 1, 64, seconds) for n, seconds in ((1, 9), (2, 1), (3, 3)))
    >>> log = RankLog((Session(start, 14, [*steps]),), steps, (), ())
    >>> line = headline(LoggedRun(pathlib.Path(), (log,), None, ()))
    >>> line.examples_per_second, line.step_seconds, line.duration_seconds, line.ended
    (32.0, 2.0, 14, False)
    """
    log, steps = run.first, steady(run.first)
    counted = [(s.examples, s.steps, s.seconds) for s in steps if s.examples is not None]
    seconds = sum(seconds for _, _, seconds in counted)
    each = [examples / count for examples, count, _ in counted]
    return Headline(
        examples_per_second=sum(n for n, _, _ in counted) / seconds if seconds > 0 else None,
        step_seconds=statistics.median(step.seconds / step.steps for step in steps),
        examples_per_step=statistics.median(each) if each else None,
        steps=log.steps[-1].step,
        epochs=len({epoch.epoch for epoch in log.epochs}),
        epochs_planned=run.start.epochs,
        replicas=run.start.replicas,
        ranks=len(run.ranks),
        hosts=tuple(dict.fromkeys(rank.start.host for rank in run.ranks)),
        duration_seconds=sum(
            max(0.0, session.last_time - session.start.time) for session in log.sessions
        ),
        ended=log.ended,
        last_time=max(rank.last_time for rank in run.ranks),
        only_first=only_first(log),
        logs=log.epochs[-1].logs if log.epochs else {},
    )


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


@dataclasses.dataclass(frozen=True)
class Curve:
    """A quantity by epoch, counted from 1.

    Args:
      name: The name by which Keras logs it, without `val_`.
      training: (epoch, value) of training.
      validation: (epoch, value) of validation; empty without validation.
    """

    name: str
    training: tuple[tuple[int, float], ...]
    validation: tuple[tuple[int, float], ...]


def curves(log: RankLog) -> tuple[Curve, ...]:
    """Returns the curves of the epochs' logs: losses first, then the others by name.

    >>> from tfdp.base.log_lines import EpochLine
    >>> epochs = (EpochLine(0, 0, 9, 1.0, {"accuracy": 0.5, "loss": 2.0, "val_loss": 3.0}),)
    >>> [(curve.name, curve.validation) for curve in curves(RankLog((), (), epochs, ()))]
    [('loss', ((1, 3.0),)), ('accuracy', ())]
    """
    names = {name.removeprefix(_VALIDATION) for epoch in log.epochs for name in epoch.logs}

    def points(name: str) -> tuple[tuple[int, float], ...]:
        found = {epoch.epoch + 1: epoch.logs[name] for epoch in log.epochs if name in epoch.logs}
        return tuple(sorted(found.items()))

    return tuple(
        Curve(name, points(name), points(_VALIDATION + name))
        for name in sorted(names, key=lambda name: (name != "loss", "loss" not in name, name))
    )


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes that a rank sent: the median of a step, and the sum of all steps."""

    rank: int
    host: str
    step_bytes: float
    total_bytes: float


def traffic(run: LoggedRun) -> tuple[Traffic, ...]:
    """Returns the bytes that each rank sent, for the ranks that measured them.

    >>> import pathlib
    >>> from tfdp.tools.report.rank_log import Session
    >>> from tfdp.base.log_lines import StartLine
    >>> step = StepLine(0, 2, 0, 2, 8, 1.0, bytes_sent=600.0)
    >>> log = RankLog((Session(StartLine(0, 0, 1, "a", 2), 0),), (step,), (), ())
    >>> traffic(LoggedRun(pathlib.Path(), (log,), None, ()))
    (Traffic(rank=0, host='a', step_bytes=300.0, total_bytes=600.0),)
    """
    found = []
    for rank, log in enumerate(run.ranks):
        sent = [(s.bytes_sent, s.steps) for s in log.steps if s.bytes_sent is not None]
        if sent:
            step_bytes = statistics.median(amount / steps for amount, steps in sent)
            total = sum(amount for amount, _ in sent)
            found.append(Traffic(rank, log.start.host, step_bytes, total))
    return tuple(found)


def skipped(steps: Sequence[StepLine]) -> tuple[int, int] | None:
    """Counts the steps that did not change the weights, and all steps; None if nobody counted.

    >>> skipped([StepLine(0, 1, 0, 1, 8, 1.0, skipped_steps=1), StepLine(0, 3, 0, 2, 8, 1.0)])
    (1, 1)
    """
    counted = [step for step in steps if step.skipped_steps is not None]
    if not counted:
        return None
    return sum(s.skipped_steps or 0 for s in counted), sum(s.steps for s in counted)
