"""The answers in lines: tables, verdicts and the arguments to use."""

import itertools
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tfdp.base.words import count, duration, number, percent, size
from tfdp.tools.plan.answers import Answers
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.tools.prediction import Prediction

#: The columns of the curve's table.
HEAD = ("ranks", "hosts", "step", "examples/s", "efficiency", "compute", "late", "sending", "rest")


def printed(answers: Answers, options: PlanOptions, console: Console) -> None:
    """Prints everything that the page says, too."""
    for line in introduction(answers):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if answers.timed:
        table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
        for column in HEAD:
            table.add_column(column, justify="right", no_wrap=True)
        for one in answers.curve:
            table.add_row(*curve_cells(one))
        console.print(table)
        for line in (*verdicts(answers), *limit_lines(answers)):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    if answers.timed and not answers.inputs.is_compiled:
        last = count(answers.curve[-1].ranks, "rank")
        table = Table(title=f"Plans for {last}", box=SIMPLE_HEAD, padding=0)
        for column, justify in (("step", "right"), ("", "left"), ("arguments", "left")):
            table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for one in answers.rows:
            table.add_row(duration(one.step_seconds), training_of(one), one.plan.written())
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
    if answers.timed:
        yield (
            f"A rank alone: forward {duration(work.forward_seconds)}, backward "
            f"{duration(work.backward_seconds)}, update {duration(work.update_seconds)}, the rest "
            f"{duration(work.other_seconds)}. Links: {inputs.links_origin}."
        )
    if work.normalized:
        layers = count(len(work.normalized), "layer")
        yield f"{layers} of the whole batch's statistics: of each a sum in each pass is waited for."
    if work.first_seconds is not None and work.first_seconds > 0:
        yield f"The first step takes {duration(work.first_seconds)} more: it is traced."


def curve_cells(one: Prediction) -> list[str]:
    """Returns the cells of one number of ranks, by :data:`HEAD`."""
    parts = one.parts
    return [
        f"{one.ranks:,}",
        f"{one.hosts:,}",
        duration(one.step_seconds),
        number(one.examples_per_second),
        percent(one.efficiency),
        duration(parts["compute"]),
        duration(parts["late"]),
        duration(parts["communication"]),
        duration(parts["update"] + parts["other"]),
    ]


def verdicts(answers: Answers) -> Iterator[str]:
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
        what = (
            f"{before.hosts:,} to {after.hosts:,} hosts"
            if before.hosts != after.hosts
            else f"{before.ranks:,} to {after.ranks:,} ranks"
        )
        yield f"From {what}: {times:.2f} times the examples per second of {more:g} at best: {pays}."


def limit_lines(answers: Answers) -> Iterator[str]:
    """Yields what limits the largest cluster."""
    told = [one for one in answers.limits[:3] if one.gain > 0.005]
    if told:
        shown = "; ".join(f"{one.name} ({percent(one.gain)})" for one in told)
        yield (
            f"What limits {count(answers.curve[-1].ranks, 'rank')}, and what of a step goes if "
            f"it were twice as good: {shown}."
        )


def memory_lines(answers: Answers, options: PlanOptions) -> Iterator[str]:
    """Yields a replica's memory, and from how many ranks on it fits."""
    one = answers.curve[-1]
    held = one.memory
    yield (
        f"Memory of a rank among {one.ranks:,}: {size(held.total)}: weights "
        f"{size(held.weights)}, gradients {size(held.gradients + held.accumulated)}, optimizer "
        f"{size(held.optimizer)}, buckets {size(held.traveling)}, residuals "
        f"{size(held.residual)}, activations "
        + (
            f"{size(held.activations)} at most."
            if held.activations
            else "not counted (`--model` tells them)."
        )
    )
    if answers.fits is None or options.memory is None:
        return
    shared = "" if options.shard == "none" else f' with shard="{options.shard}"'
    for what, found in (
        ("All of it", answers.fits.everything),
        ("The optimizer's state by itself", answers.fits.state),
    ):
        where = f"from {count(found, 'rank')} on" if found else "on no number of ranks"
        yield f"{what} fits into {size(options.memory)} {where}{shared}."
    if answers.fits.alone and answers.fits.everything != 1:
        yield "One rank alone fits: it sends nothing."
    elif answers.fits.everything is None and options.shard == "none":
        yield "`--shard optimizer` divides the optimizer's state among ranks."


def use_lines(answers: Answers) -> Iterator[str]:
    """Yields the arguments to use, and how long the prediction took."""
    if answers.timed:
        yield f"Use: strategy = {used(answers)}"
    yield f"(predicted in {answers.seconds:.1f} s)"


def used(answers: Answers) -> str:
    """Returns the strategy to use; XLA chooses by itself how devices exchange."""
    if answers.inputs.is_compiled:
        return "tfdp.XLAStrategy()"
    return answers.curve[-1].plan.written()


def training_of(one: Prediction) -> str:
    """Says whether a plan trains what one device trains, or that on rounded sums."""
    if one.plan.is_exact:
        return "the same"
    return "rounded" if one.plan.compression == "bfloat16" else "another"


def rows_of(predictions: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """Returns the cells of the plans' table."""
    return [
        (
            duration(one.step_seconds),
            percent(one.efficiency),
            training_of(one),
            one.plan.written(),
        )
        for one in predictions
    ]
