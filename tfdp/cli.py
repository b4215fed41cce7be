"""The command `tfdp`.

Nothing heavy is imported until a subcommand runs: `tfdp --help` answers without TensorFlow.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

import tfdp
from tfdp.arguments import numbers, require, set_environment
from tfdp.bench.allreduce.command_line import add_allreduce
from tfdp.bench.convergence.command_line import add_convergence
from tfdp.bench.data.command_line import add_bench_data
from tfdp.bench.options import MODELS, BenchOptions, default_replicas
from tfdp.data.index_command import add_data
from tfdp.demo.options import DATASETS, DemoOptions
from tfdp.doctor.command_line import add_doctor
from tfdp.launch.command_line import add_run
from tfdp.report.command_line import add_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the words after `tfdp`; by default those of this process.

    Returns:
        The exit code: 0; 1 where the demo's weights differ, a benchmark's process failed or a
        check of `doctor` did; 2 where what the user asked for cannot be done, with a message and
        no traceback; of `run`, and of a demo whose rank failed, see :func:`tfdp.launch.run`.

    Raises:
        SystemExit: `--help` or `--version` (0), or words that cannot be parsed (2).
    """
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    return parsed.handler(parsed)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each leaves its function in `handler`."""
    parser = argparse.ArgumentParser(
        prog="tfdp",
        description="Data-parallel training for Keras 3: N replicas train like one device.",
    )
    parser.add_argument("--version", action="version", version=f"tfdp {tfdp.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_bench(commands)
    add_data(commands)
    add_run(commands)
    add_doctor(commands)
    add_report(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "demo",
        help="train on one device and on N replicas, and compare",
        description="Trains a small convolutional network on one device and on N replicas, with "
        "the same seed and order, compares the weights and draws both curves.",
    )
    default = DemoOptions()
    parser.add_argument(
        "--replicas",
        type=int,
        help=f"GPUs, or logical CPU devices ({default.replicas}, or as many as processes)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=default.processes,
        metavar="P",
        help="train the replicas in P processes on this host's CPU, as a cluster (%(default)s: in "
        "this one)",
    )
    parser.add_argument(
        "--dataset", choices=DATASETS, default=default.dataset, help="real images (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, help="8 for digits, 2 for fashion_mnist")
    parser.add_argument(
        "--batch-size", type=int, default=default.batch_size, help="the global batch (%(default)s)"
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=default.output,
        metavar="PATH.png",
        help="where to draw the curves (%(default)s)",
    )
    parser.set_defaults(handler=_demo, parser=parser)


def _add_bench(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser("bench", help="measure tfdp against TensorFlow's own strategy")
    measures = bench.add_subparsers(metavar="MEASURE", required=True)
    parser = measures.add_parser(
        "fit",
        help="step time and time to the first step of model.fit",
        description="Step time and time to the first step of model.fit on logical CPU devices, "
        "for tfdp and tf.distribute.MirroredStrategy in turn, each in fresh processes.",
    )
    default = BenchOptions()
    parser.add_argument(
        "--model", choices=(*MODELS, "all"), default="all", help="what to train (%(default)s)"
    )
    parser.add_argument(
        "--replicas",
        type=numbers("replicas", "2,4"),
        help="numbers of replicas (2,4, or as many as processes)",
    )
    parser.add_argument(
        "--batch", type=int, default=default.batch, help="examples per replica (%(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=default.rounds,
        help="fresh runs a side (%(default)s)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=default.processes,
        metavar="P",
        help="run each in P processes, as a cluster, against MultiWorkerMirroredStrategy "
        "(%(default)s: one process, against MirroredStrategy)",
    )
    parser.add_argument(
        "--steps", type=int, default=default.steps, help="timed steps a process (%(default)s)"
    )
    parser.add_argument(
        "--one-device", action="store_true", help="also time one device with the global batch"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=default.timeout_seconds,
        help="seconds for each process (%(default)g)",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the raw results")
    parser.set_defaults(handler=_bench_fit, parser=parser)
    add_allreduce(measures)
    add_convergence(measures)
    add_bench_data(measures)
    parser = measures.add_parser(
        "equivalence",
        help="what N replicas change, under TensorFlow's own strategy and under tfdp",
        description="Trains small Keras programs on one device, under "
        "tf.distribute.MirroredStrategy and under tfdp, and prints how far they part.",
    )
    parser.add_argument("--replicas", type=int, default=4, help="logical CPU devices (%(default)s)")
    parser.set_defaults(handler=_bench_equivalence, parser=parser)
    parser = measures.add_parser(
        "optimizers",
        help="what an update costs, beside Keras' optimizers",
        description="Times the update of 12.6 million weights by LARS and LAMB and by Keras' "
        "optimizers, in turn.",
    )
    parser.add_argument("--rounds", type=int, default=30, help="timings of each (%(default)s)")
    parser.set_defaults(handler=_bench_optimizers, parser=parser)
    parser = measures.add_parser(
        "telemetry",
        help="what tfdp.callbacks.Telemetry costs a step",
        description="Times model.fit with Telemetry and without it, in turn, in one process.",
    )
    parser.add_argument("--rounds", type=int, default=15, help="fits a side (%(default)s)")
    parser.add_argument("--steps", type=int, default=41, help="of each fit (%(default)s)")
    parser.add_argument("--replicas", type=int, default=2, help="logical CPU devices (%(default)s)")
    parser.set_defaults(handler=_bench_telemetry, parser=parser)


def _demo(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    try:
        options = DemoOptions(
            dataset=parsed.dataset,
            replicas=_demo_replicas(parsed),
            processes=parsed.processes,
            epochs=parsed.epochs,
            batch_size=parsed.batch_size,
            output=parsed.output,
        )
    except ValueError as error:
        parser.error(str(error))
    needed = ["tensorflow", "matplotlib"] + ["sklearn"] * (options.dataset == "digits")
    require(needed, parser)
    set_environment()
    if options.processes > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

    from tfdp.bench.datasets import DataUnavailableError
    from tfdp.demo.run import run

    try:
        return run(options)
    except DataUnavailableError as error:
        parser.error(str(error))


def _demo_replicas(parsed: argparse.Namespace) -> int:
    if parsed.replicas is not None:
        return parsed.replicas
    return max(DemoOptions.replicas, parsed.processes)


def _bench_fit(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    try:
        options = BenchOptions(
            models=MODELS if parsed.model == "all" else (parsed.model,),
            replicas=parsed.replicas or default_replicas(parsed.processes),
            batch=parsed.batch,
            rounds=parsed.rounds,
            processes=parsed.processes,
            steps=parsed.steps,
            one_device=parsed.one_device,
            timeout_seconds=parsed.timeout,
            json=parsed.json,
        )
    except ValueError as error:
        parser.error(str(error))
    require(["tensorflow"], parser)

    from tfdp.bench.fit import run

    return run(options)


def _bench_equivalence(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    if parsed.replicas < 2:
        parser.error(
            f"`replicas` must be at least 2; received {parsed.replicas}; do `--replicas 4`."
        )
    require(["tensorflow"], parser)
    set_environment()

    from tfdp.bench.equivalence import run

    return run(parsed.replicas)


def _bench_optimizers(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    if parsed.rounds < 1:
        parser.error(f"`rounds` must be at least 1; received {parsed.rounds}; do `--rounds 30`.")
    require(["tensorflow"], parser)
    set_environment()

    from tfdp.bench.optimizers import run

    return run(parsed.rounds)


def _bench_telemetry(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    for option, least in (("rounds", 1), ("steps", 2), ("replicas", 1)):
        value = getattr(parsed, option)
        if value < least:
            parser.error(f"`{option}` must be at least {least}; received {value}.")
    require(["tensorflow"], parser)
    set_environment()

    from tfdp.bench.telemetry import run

    return run(parsed.rounds, parsed.steps, parsed.replicas)


if __name__ == "__main__":
    sys.exit(main())
