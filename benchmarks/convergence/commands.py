"""The commands of the sweeps: `convergence` and `accuracy-by-bytes`."""

import argparse
import os
from typing import Any

from benchmarks.convergence.bytes_options import BytesOptions
from benchmarks.convergence.convergence_options import ConvergenceOptions
from tfdp.base.command_line import add_command, require

_KEPT = "Every finished run is kept: the same command goes on where it was stopped."


def add_convergence(commands: argparse._SubParsersAction) -> None:
    """Adds `convergence` to the benchmarks."""
    add_command(
        commands,
        "convergence",
        ConvergenceOptions,
        _convergence,
        help="the accuracy after the same epochs with large batches, by optimizer",
        description="Trains a small network with a small batch and with large ones, by SGD with "
        "linear scaling, tuned Nesterov and Adam, LARS and LAMB, for the same number of epochs; "
        f"sweeps learning rates, prints a table and draws a picture. {_KEPT}",
    )


def add_accuracy_by_bytes(commands: argparse._SubParsersAction) -> None:
    """Adds `accuracy-by-bytes` to the benchmarks."""
    add_command(
        commands,
        BytesOptions.COMMAND,
        BytesOptions,
        _accuracy_by_bytes,
        help="the accuracy after the same epochs, by what replicas send each other",
        description="Trains a small network on replicas that send whole gradients, compressed ones "
        "with and without error feedback, and weights every few updates, for the same number of "
        f"epochs; sweeps learning rates, prints a table and draws a picture. {_KEPT}",
    )


def _convergence(options: ConvergenceOptions, parser: argparse.ArgumentParser) -> int:
    from benchmarks.convergence.sitting import show_batches

    return _run(options, parser, show_batches)


def _accuracy_by_bytes(options: BytesOptions, parser: argparse.ArgumentParser) -> int:
    from benchmarks.convergence.bytes_report import show_bytes

    return _run(options, parser, show_bytes)


def _run(options: Any, parser: argparse.ArgumentParser, show: Any) -> int:
    require(["tensorflow", "matplotlib"], parser)

    # Keras needs these for its download of Fashion-MNIST; the runs are in processes of their own.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    from benchmarks.convergence.ledger import LedgerError
    from benchmarks.convergence.sitting import run
    from tutorials.datasets import DataUnavailableError

    try:
        return run(options, show=show)
    except (LedgerError, DataUnavailableError) as error:
        parser.error(str(error))
