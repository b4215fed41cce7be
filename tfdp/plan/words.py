"""The answers in lines: tables, verdicts and the arguments to use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tfdp.plan.answers import Answers
from tfdp.plan.plan_options import PlanOptions
from tfdp.prediction import Prediction
from tfdp.report.number_words import duration, number, percent, size

MOST_ROWS = 10

#: The columns of the curve's table.
HEAD = ("ranks", "hosts", "step", "examples/s", "efficiency", "compute", "late", "sending", "rest")


def printed(answers: Answers, options: PlanOptions, console: Console) -> None:
    """Prints everything that the page says, too."""
    for line in introduction(answers):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if any(one.step_seconds for one in answers.curve):
        table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
        for column in HEAD:
            table.add_column(column, justify="right", no_wrap=True)
        for one in answers.curve:
            table.add_row(*curve_cells(one, options))
        console.print(table)
        for line in (*verdicts(answers, options), *limit_lines(answers)):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        table = Table(
            title=f"Plans for {answers.curve[-1].ranks} ranks", box=SIMPLE_HEAD, padding=0
        )
        for column, justify in (("step", "right"), ("", "left"), ("arguments", "left")):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for one in answers.rows[:MOST_ROWS]:
            table.add_row(duration(one.step_seconds), training_of(one), written(one))
        console.print(table, markup=False)
    for line in (*memory_lines(answers, options), *use_lines(answers)):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def introduction(answers: Answers) -> Iterator[str]:
    """Yields what was planned with."""
    inputs, work = answers.inputs, answers.inputs.work
    yield (
        f"{inputs.name}: {work.parameters:,} weights, {size(work.gradient_bytes)} of gradients, "
        f"{work.batch} examples a rank ({inputs.origin})."
    )
    if work.compute_seconds:
        yield (
            f"A rank alone: forward {duration(work.forward_seconds)}, backward "
            f"{duration(work.backward_seconds)}, update {duration(work.update_seconds)}, the rest "
            f"{duration(work.other_seconds)}. Links: {inputs.links_origin}."
        )
    if work.first_seconds is not None and work.first_seconds > 0:
        yield f"The first step takes {duration(work.first_seconds)} more: it is traced."


def curve_cells(one: Prediction, options: PlanOptions) -> list[str]:
    """Returns the cells of one number of ranks, by :data:`HEAD`."""
    parts = one.parts
    return [
        f"{one.ranks:,}",
        f"{hosts_of(one, options):,}",
        duration(one.step_seconds),
        number(one.examples_per_second),
        percent(one.efficiency),
        duration(parts["compute"]),
        duration(parts["late"]),
        duration(parts["communication"]),
        duration(parts["update"] + parts["other"]),
    ]


def hosts_of(one: Prediction, options: PlanOptions) -> int:
    """Returns the number of hosts of a prediction's ranks."""
    return max(1, one.ranks // options.ranks_per_host)


def verdicts(answers: Answers, options: PlanOptions) -> Iterator[str]:
    """Yields whether more ranks pay: the rate of each number over that of the one before."""
    for before, after in itertools.pairwise(answers.curve):
        times = after.examples_per_second / before.examples_per_second
        more = after.ranks / before.ranks
        pays = (
            "pays"
            if times > 1 + 0.7 * (more - 1)
            else "pays in part"
            if times > 1.05
            else "does not pay"
        )
        hosts = hosts_of(before, options), hosts_of(after, options)
        what = (
            f"{hosts[0]:,} to {hosts[1]:,} hosts"
            if hosts[0] != hosts[1]
            else f"{before.ranks:,} to {after.ranks:,} ranks"
        )
        yield f"From {what}: {times:.2f} times the examples per second of {more:g} at best: {pays}."


def limit_lines(answers: Answers) -> Iterator[str]:
    """Yields what limits the largest cluster."""
    if answers.limits:
        shown = "; ".join(
            f"{one.name} ({percent(one.gain)})" for one in answers.limits[:3] if one.gain > 0.005
        )
        yield (
            f"What limits {answers.curve[-1].ranks:,} ranks, and what of a step goes if it were "
            f"twice as good: {shown}."
        )


def memory_lines(answers: Answers, options: PlanOptions) -> Iterator[str]:
    """Yields a replica's memory, and from how many ranks on it fits."""
    one = answers.curve[-1]
    held = one.memory
    yield (
        f"Memory of a rank among {one.ranks:,}: {size(held.total)}: weights "
        f"{size(held.weights)}, gradients {size(held.gradients)}, optimizer "
        f"{size(held.optimizer)}, activations {size(held.activations)} at most, buckets "
        f"{size(held.traveling)}."
    )
    if options.memory is None:
        return
    shared = "" if options.shard == "none" else f' with shard="{options.shard}"'
    if answers.fits_from is None:
        other = "" if options.shard == "gradients" else "; try `--shard gradients`"
        yield f"It fits into {size(options.memory)} on no number of ranks{shared}{other}."
    else:
        ranks = "1 rank" if answers.fits_from == 1 else f"{answers.fits_from:,} ranks"
        yield f"It fits into {size(options.memory)} from {ranks} on{shared}."


def use_lines(answers: Answers) -> Iterator[str]:
    """Yields the arguments to use, and how long the prediction took."""
    if answers.curve[-1].step_seconds:
        yield f"Use: strategy = {written(answers.curve[-1])}"
    yield f"(predicted in {answers.seconds:.1f} s)"


def training_of(one: Prediction) -> str:
    """Says whether a plan trains what one device trains."""
    if one.plan.is_exact:
        return "the same"
    return "rounded" if one.plan.compression == "bfloat16" else "another"


def written(one: Prediction) -> str:
    """Returns the strategy as a program writes it."""
    return f"tfdp.DataParallelStrategy({', '.join(one.plan.arguments())})"


def rows_of(predictions: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """Returns the cells of the plans' table."""
    return [
        (duration(one.step_seconds), percent(one.efficiency), training_of(one), written(one))
        for one in predictions
    ]
