"""The rules for what to try next, each a pure function with its threshold, which the page shows."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence

from tfdp.base.log_lines import StartLine, StepLine
from tfdp.base.stragglers import LATE_SHARE, LEAST_SAMPLES, last_share
from tfdp.base.words import count, duration, number, percent
from tfdp.tools.prediction.ranking import plans_in_words
from tfdp.tools.report.breakdown import RankSplit, rank_splits
from tfdp.tools.report.late_ranks import Wait, straggler, stragglers, waits
from tfdp.tools.report.log_directory import LoggedRun
from tfdp.tools.report.prediction_inputs import Recorded, recorded
from tfdp.tools.report.summary import headline, skipped

INPUT_SHARE = 0.15
COMMUNICATION_SHARE = 0.2
OTHER_SHARE = 0.25
SKIPPED_SHARE = 0.05
DROPPED_SHARE = 0.2
ERROR_GROWTH = 2.0
ERROR_SAMPLES = 6


@dataclasses.dataclass(frozen=True)
class Finding:
    """The finding of one rule.

    Args:
      name: The subject of the rule.
      measured: The measurement, in a sentence.
      threshold: The value from which on there is advice.
      advice: What to do, each a sentence with names of options in backquotes; empty below the
        threshold.
    """

    name: str
    measured: str
    threshold: str
    advice: tuple[str, ...] = ()


def findings(run: LoggedRun) -> tuple[Finding, ...]:
    """Returns the finding of each rule for which the run has numbers, those with advice first.

    >>> import pathlib
    >>> from tfdp.tools.report.rank_log import RankLog, Session
    >>> steps = tuple(StepLine(0, n, 0, 1, 8, 1.0, input_seconds=0.75, loss=1.0) for n in (1, 2))
    >>> log = RankLog((Session(StartLine(0, 0, 1, "a", 1), 0, [*steps]),), steps, (), ())
    >>> [(found.name, bool(found.advice))
    ...  for found in findings(LoggedRun(pathlib.Path(), (log,), None, ()))]
    [('Input', True), ('Losses and gradients that are not finite', False)]
    """
    splits, steps = rank_splits(run), run.first.steps
    found = [
        input_wait(splits),
        communication(splits, recorded(run)),
        other(splits, run.start),
        straggling(waits(run), splits, headline(run).step_seconds),
        skipped_steps(skipped(steps)),
        dropped_examples(steps),
        not_finite(steps),
        compression_error(steps),
    ]
    present = [finding for finding in found if finding is not None]
    return tuple(sorted(present, key=lambda finding: not finding.advice))


def input_wait(splits: Sequence[RankSplit]) -> Finding | None:
    """Looks for steps that wait for input on some rank.

    >>> from tfdp.tools.report.breakdown import Split
    >>> input_wait([RankSplit(0, "a", Split({"input": 1.0, "rest": 3.0}), 9)]).measured
    'Rank 0 on a waits for input for 25% of a step.'
    """
    worst = _worst(splits, "input")
    if worst is None:
        return None
    one, share = worst
    return Finding(
        "Input",
        f"{_rank(one)} waits for input for {percent(share)} of a step.",
        f"{percent(INPUT_SHARE)} of a step on some rank",
        ()
        if share < INPUT_SHARE
        else (
            "Read by `tfdp.data.pipeline(source, global_batch_size=...)`, which prefetches and "
            'reads only each process\' share; leave `prefetch="auto"`.',
            "If the examples fit into memory after decoding, set `cache=True`; what is random "
            "belongs into `map_fn`, which runs after the cache.",
            "Make `map_fn` cheaper, or decode in other processes: docs/data/input_service.py.",
            "Index TFRecord files once by `tfdp data index`; `tfdp.callbacks.InputMonitor` shows "
            "what a change gains.",
        ),
    )


def communication(splits: Sequence[RankSplit], run: Recorded | None) -> Finding | None:
    """Looks for steps in which communication is not hidden behind the backward pass.

    The rank with the least share is judged: in the communication of the others is also their wait
    for late ranks, which :func:`straggling` judges. The advice is the prediction's
    (:mod:`tfdp.tools.prediction`), on links that explain what the run has measured.

    >>> from tfdp.tools.report.breakdown import Split
    >>> split = Split({"compute": 3.0, "communication": 1.0})
    >>> communication([RankSplit(0, "a", split, 9)], None).measured
    'Exposed communication takes 25% of a step on the rank that has the least.'
    """
    shares = _shares(splits, "communication")
    if not shares:
        return None
    share = min(shares)
    return Finding(
        "Communication",
        f"Exposed communication takes {percent(share)} of a step on the rank that has the least.",
        f"{percent(COMMUNICATION_SHARE)} of a step on every rank",
        () if share < COMMUNICATION_SHARE else tuple(_less_communication(run)),
    )


def _less_communication(run: Recorded | None) -> Iterator[str]:
    if run is not None and run.cluster is not None:
        yield from plans_in_words(run.plan, run.work, run.cluster)
    yield "Compare other clusters and plans before you rent them: `tfdp plan --logs LOG_DIR`."
    yield "See what the links give: `tfdp doctor` on these hosts, and `tfdp bench`."


def other(splits: Sequence[RankSplit], start: StartLine) -> Finding | None:
    """Looks for steps whose time goes to Keras, callbacks and launches.

    >>> from tfdp.tools.report.breakdown import Split
    >>> split = Split({"compute": 3.0, "other": 1.0})
    >>> len(other([RankSplit(0, "a", split, 9)], StartLine(0, 0, 1, "a", 2)).advice)
    3
    """
    shares = _shares(splits, "other")
    if not shares:
        return None
    share = statistics.median(shares)
    executions = start.steps_per_execution or 1
    return Finding(
        "Other",
        f"Keras, callbacks and launches take {percent(share)} of a step, the median of the ranks.",
        f"{percent(OTHER_SHARE)} of a step",
        ()
        if share < OTHER_SHARE
        else (
            f"Run several steps at once: `model.compile(steps_per_execution={10 * executions})`.",
            "Give each step more work: a larger global batch.",
            "Look at callbacks that work in every batch (`on_train_batch_end`).",
        ),
    )


def straggling(
    found: tuple[Wait, ...], splits: Sequence[RankSplit], step_seconds: float
) -> Finding | None:
    """Looks for ranks that the others wait for, or else names the rank that is last most often.

    The advice is about the first of these ranks.

    >>> last = Wait(3, "b", 0.0, late_seconds=0.05, times_last=9, samples=10)
    >>> straggling((last,), (), step_seconds=0.5).measured
    'Rank 3 on b comes last in 9 of 10 samples, 50 ms (10% of a step) after the others.'
    """
    last = straggler(found)
    if last is None or step_seconds <= 0:
        return None
    late = stragglers(found)
    return Finding(
        "Stragglers",
        " ".join(_how_late(wait, step_seconds) for wait in late or [last]),
        f"{percent(LATE_SHARE)} of a step, and last in {percent(last_share(len(found)))} of at "
        f"least {LEAST_SAMPLES} samples",
        tuple(_for_straggler(last, splits)) if late else (),
    )


def _how_late(wait: Wait, step_seconds: float) -> str:
    seconds = max(0.0, wait.late_seconds)
    return (
        f"Rank {wait.rank} on {wait.host} comes last in {wait.times_last} of "
        f"{count(wait.samples, 'sample')}, {duration(seconds)} "
        f"({percent(seconds / step_seconds)} of a step) after the others."
    )


def _for_straggler(last: Wait, splits: Sequence[RankSplit]) -> Iterator[str]:
    part = _excess(last.rank, splits)
    if part is not None:
        name, seconds = part
        what = {"input": "waits for input", "compute": "computes"}.get(name, "spends on the rest")
        yield (
            f"Rank {last.rank} {what} {duration(seconds)} a step longer than the median of the "
            "others."
        )
    if part is not None and part[0] == "input":
        yield (
            f"Look at how {last.host} reads: its disk, and what else uses it; `cache=True` or a "
            "copy of the data on the host itself takes the difference away."
        )
    yield (
        f"Run `tfdp doctor` on these hosts: it says which ranks on {last.host} share cores or have "
        "too few threads. `tfdp run` gives each rank its share of the cores."
    )
    yield (
        f"See what else runs on {last.host}, and whether it is of the others' kind: every replica "
        "has the same number of examples, so that the slowest sets the pace."
    )


def _excess(rank: int, splits: Sequence[RankSplit]) -> tuple[str, float] | None:
    """Returns the part, and the seconds, that exceed the others' median the most; or None."""
    own = next((one.split.parts for one in splits if one.rank == rank), {})
    others = [one.split.parts for one in splits if one.rank != rank]
    longer = {}
    for part in ("input", "compute", "other"):
        theirs = [parts[part] for parts in others if part in parts]
        if part in own and theirs:
            longer[part] = own[part] - statistics.median(theirs)
    most = max(longer.items(), key=lambda item: item[1], default=None)
    return None if most is None or most[1] <= 0 else most


def skipped_steps(counted: tuple[int, int] | None) -> Finding | None:
    """Looks for steps that did not change the weights, because a gradient was not finite.

    Args:
      counted: The number of skipped steps, and the number of all steps.

    >>> skipped_steps((3, 300)).advice, len(skipped_steps((30, 300)).advice)
    ((), 3)
    """
    if counted is None or counted[1] == 0:
        return None
    lost, steps = counted
    return Finding(
        "Skipped steps",
        f"{lost:,} of {count(steps, 'step')} ({percent(lost / steps)}) changed no weight.",
        f"{percent(SKIPPED_SHARE)} of the steps",
        ()
        if lost / steps < SKIPPED_SHARE
        else (
            "If they are at the start, begin lower: "
            "`keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10)`.",
            "If they come all the time, gradients overflow by themselves: lower the learning rate, "
            "lengthen `tfdp.optimizers.Warmup`, or set `global_clipnorm=1.0`.",
            "On hardware with bfloat16 `mixed_bfloat16` needs no loss scale.",
        ),
    )


def dropped_examples(steps: Sequence[StepLine]) -> Finding | None:
    """Looks for examples that did not count, because their ranks came late.

    >>> dropped_examples([StepLine(0, 1, 0, 1, 8, 1.0, dropped_examples=2)]).measured
    '2 of 8 examples (25%) did not count, as their ranks came late.'
    """
    counted = [(step.dropped_examples, step.examples or 0) for step in steps]
    known = [(dropped, examples) for dropped, examples in counted if dropped is not None]
    dropped, examples = (sum(each) for each in zip(*known, strict=True)) if known else (0, 0)
    if not examples:
        return None
    share = dropped / examples
    return Finding(
        "Dropped examples",
        f"{dropped:,} of {examples:,} examples ({percent(share)}) did not count, as their ranks "
        "came late.",
        f"{percent(DROPPED_SHARE)} of the examples",
        ()
        if share < DROPPED_SHARE
        else (
            "See which rank is late most often, in what `fit` says at its end: if it is always the "
            "same, replace it, or train without it.",
            "If ranks are late by chance, fewer `backups` of "
            "`tfdp.synchronization.BackupWorkers` drop fewer examples.",
        ),
    )


def not_finite(steps: Sequence[StepLine]) -> Finding | None:
    """Looks for a loss or gradient norm that is not finite in a step that was not skipped.

    >>> not_finite([StepLine(0, 7, 0, 1, 8, 1.0, loss=math.nan)]).measured
    'From step 7 on, 1 of 1 logged losses and norms is not finite.'
    """
    values = [
        (step.step, value)
        for step in steps
        if not step.skipped_steps
        for value in (step.loss, step.gradient_norm)
        if value is not None
    ]
    if not values:
        return None
    bad = [step for step, value in values if not math.isfinite(value)]
    verb = "is" if len(bad) == 1 else "are"
    return Finding(
        "Losses and gradients that are not finite",
        f"From step {bad[0]:,} on, {number(len(bad))} of {number(len(values))} logged losses and "
        f"norms {verb} not finite."
        if bad
        else f"All of {number(len(values))} logged losses and norms are finite.",
        "a single one in a step that was not skipped",
        (
            "The weights may be lost from there on: go back to a checkpoint from before.",
            "Lower the learning rate or warm it up (`tfdp.optimizers.Warmup`), and clip: "
            "`global_clipnorm=1.0`.",
            "Find where it begins: `tf.debugging.enable_check_numerics()` on one device.",
        )
        if bad
        else (),
    )


def compression_error(steps: Sequence[StepLine]) -> Finding | None:
    """Looks for a compression that loses more and more of the gradients.

    >>> errors = [1.0, 1.0, 2.0, 2.0, 5.0, 5.0]
    >>> steps = [StepLine(0, n, 0, 1, 8, 1.0, compression_error=e) for n, e in enumerate(errors, 1)]
    >>> compression_error(steps).measured
    "What compression has lost was 1 of the gradients' norm in the first samples, 5 in the last."
    """
    told = [step.compression_error for step in steps if step.compression_error is not None]
    errors = [error for error in told if math.isfinite(error)]
    if len(errors) < ERROR_SAMPLES:
        return None
    third = len(errors) // 3
    first, last = statistics.median(errors[:third]), statistics.median(errors[-third:])
    return Finding(
        "Compression error",
        f"What compression has lost was {number(first)} of the gradients' norm in the first "
        f"samples, {number(last)} in the last.",
        f"{number(ERROR_GROWTH)} times the first third's median in the last third of "
        f"{ERROR_SAMPLES} samples or more",
        (
            "Updates come later and later: send more of each, by a larger ratio or rank, or with "
            "`ErrorFeedback(Int8())`.",
            "Where the rate rises or gradients shrink meanwhile, residuals of before weigh more: "
            "lower the rate, or warm it up (`tfdp.optimizers.Warmup`).",
        )
        if last > ERROR_GROWTH * first
        else (),
    )


def _worst(splits: Sequence[RankSplit], part: str) -> tuple[RankSplit, float] | None:
    shares = [(one, share) for one in splits if (share := one.split.share(part)) is not None]
    return max(shares, key=lambda pair: pair[1], default=None)


def _shares(splits: Sequence[RankSplit], part: str) -> list[float]:
    return [share for one in splits if (share := one.split.share(part)) is not None]


def _rank(one: RankSplit) -> str:
    return f"Rank {one.rank} on {one.host}"
