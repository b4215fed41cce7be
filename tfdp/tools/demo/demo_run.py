"""One run of the demo, from its options to its verdict."""

import functools

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

import tfdp
from tfdp.tools.demo.demo_devices import prepare_devices
from tfdp.tools.demo.demo_options import DemoOptions
from tfdp.tools.demo.demo_processes import RanksFailedError, train_in_processes
from tfdp.tools.demo.image_sets import load
from tfdp.tools.demo.plot import plot_curves
from tfdp.tools.demo.train import TrainingRun, steps_per_epoch, train
from tfdp.verification.run_differences import difference, largest

# Sums in another order differ in the last bit of float32 (6e-8), and training amplifies that. One
# device that was given each batch's examples in reverse ended 5e-7 from itself after the 184 steps
# of the digits and 4e-6 after the 1,876 of Fashion-MNIST. Two replicas ended 5e-7 and 2e-5 from one
# device (single runs on CPU). The bound leaves room above these, and is far below the difference of
# other training: two replicas of stock MirroredStrategy ended 6e-2 away on the digits.
RELATIVE_BOUND = 1e-4


def run(options: DemoOptions, console: Console | None = None) -> int:
    """Trains twice, prints the comparison and draws the curves.

    Args:
      options: The options that say what to train, and on how many replicas.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where the weights differ by more than :data:`RELATIVE_BOUND` of the
      largest weight; the launcher's where a process failed.

    Raises:
      tfdp.tools.demo.image_sets.DataUnavailableError: The images cannot be had.
    """
    console = console or Console()
    try:
        runs = _train_both(options, console)
    except RanksFailedError as error:
        console.print(
            f"[bold red]All {options.processes} processes must end without an error[/], but see "
            "above for the one that failed first."
        )
        return error.exit_code
    single, replicated = runs.values()
    scale = largest(single.weights)
    pairs = zip(replicated.weights, single.weights, strict=True)
    apart = max(difference(ours, expected, scale) for ours, expected in pairs)
    if not all(np.isfinite(weights).all() for weights in replicated.weights):
        apart = np.nan  # both runs may have diverged alike, which proves nothing
    plot_curves(runs, f"{options.dataset}: {' and '.join(runs)}, same seed", options.output)
    console.print(_table(runs))
    return _verdict(apart, scale, options, console)


def _train_both(options: DemoOptions, console: Console) -> dict[str, TrainingRun]:
    """Returns both runs by their names, the one on one device first."""
    in_processes = options.processes > 1
    devices = prepare_devices(1 if in_processes else options.replicas)
    data = load(options.dataset)
    strategy = None if in_processes else tfdp.DataParallelStrategy(devices=devices)
    total_steps = options.epochs * steps_per_epoch(data, options.batch_size)
    where = f"{options.processes} processes" if in_processes else f"devices {', '.join(devices)}"
    console.print(
        f"{options.dataset}: {len(data.train_images)} training and {len(data.test_images)} test "
        f"images, {options.epochs} epochs, {total_steps} steps of {options.batch_size} examples; "
        f"{where}"
    )
    fit = functools.partial(
        train, data, epochs=options.epochs, batch_size=options.batch_size, seed=options.seed
    )
    with _progress(console) as progress:
        task = progress.add_task("one device", total=total_steps)
        single = fit(strategy=None, on_step=functools.partial(progress.advance, task))
        task = progress.add_task(_name(options), total=total_steps)
        if strategy is not None:
            replicated = fit(strategy=strategy, on_step=functools.partial(progress.advance, task))
        else:
            replicated = train_in_processes(
                options, lambda steps: progress.update(task, completed=steps)
            )
    return {"one device": single, _name(options): replicated}


def _name(options: DemoOptions) -> str:
    """Returns the name of the second run.

    >>> _name(DemoOptions(replicas=4, processes=2))
    '4 replicas, 2 processes'
    """
    if options.processes == 1:
        return f"{options.replicas} replicas"
    if options.processes == options.replicas:
        return f"{options.processes} processes"
    return f"{options.replicas} replicas, {options.processes} processes"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=console,
    )


def _table(runs: dict[str, TrainingRun]) -> Table:
    table = Table("", *runs)
    table.add_row("test accuracy", *(f"{run.test_accuracy:.4f}" for run in runs.values()))
    table.add_row("training loss", *(f"{run.history['loss'][-1]:.6f}" for run in runs.values()))
    table.add_row(
        "median step", *(f"{1e3 * run.median_step_seconds:.1f} ms" for run in runs.values())
    )
    return table


def _verdict(apart: float, scale: float, options: DemoOptions, console: Console) -> int:
    console.print(
        f"Largest weight difference: {apart * scale:.2e}, {apart:.2e} of the largest weight "
        f"(bound {RELATIVE_BOUND:.0e})"
    )
    console.print(f"Curves: {options.output}", soft_wrap=True, highlight=False)
    if apart <= RELATIVE_BOUND:  # NaN is not
        return 0
    console.print(
        f"[bold red]{options.replicas} replicas must end within {RELATIVE_BOUND:.0e} of one "
        f"device's largest weight; received {apart:.2e}.[/] This is a bug in tfdp; "
        "please report it with the output above and the output of `pip freeze`."
    )
    return 1
