"""The command line `python -m benchmarks NAME`, for the root of a clone."""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.activations import add_activations
from benchmarks.checkpoint_cost import add_checkpoint
from benchmarks.compile_ahead import add_compile_ahead
from benchmarks.compression import add_compression
from benchmarks.compression_cost import add_compression_cost
from benchmarks.convergence.commands import add_accuracy_by_bytes, add_convergence
from benchmarks.costs import add_costs
from benchmarks.data.data_options import DataOptions
from benchmarks.elastic import add_elastic
from benchmarks.equivalence import add_equivalence
from benchmarks.everything import add_all
from benchmarks.faults import add_faults
from benchmarks.fit import add_fit
from benchmarks.gathers import add_gathers
from benchmarks.keras_on_jax import add_keras_on_jax
from benchmarks.layouts import add_layouts
from benchmarks.memory import add_memory
from benchmarks.normalization import add_normalization
from benchmarks.optimizers import add_optimizers
from benchmarks.partitioners import add_partitioners
from benchmarks.plan.command import add_plan
from benchmarks.slow_links import add_slow_links
from benchmarks.slow_ranks import add_slow_ranks
from benchmarks.sums import add_sums
from benchmarks.synchronization import add_synchronization
from benchmarks.telemetry import add_telemetry
from benchmarks.versions import add_versions
from tfdp.base.command_line import add_command, require, set_environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: The words after `python -m benchmarks`; by default those of this process.

    Returns:
      The exit code: 0; 1 where a process failed or results that must be equal differ; 2 where the
      request cannot be carried out.
    """
    parsed = build_parser().parse_args(arguments)
    return parsed.handler(parsed)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all benchmarks; each leaves its function in `handler`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Prints the tables of README and docs; benchmarks/README.md says which is "
        "whose.",
    )
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    for add in (
        add_accuracy_by_bytes,
        add_activations,
        add_all,
        add_checkpoint,
        add_compile_ahead,
        add_compression,
        add_compression_cost,
        add_convergence,
        add_costs,
        _add_data,
        add_elastic,
        add_equivalence,
        add_faults,
        add_memory,
        add_fit,
        add_gathers,
        add_keras_on_jax,
        add_layouts,
        add_normalization,
        add_optimizers,
        add_partitioners,
        add_plan,
        add_slow_links,
        add_slow_ranks,
        add_sums,
        add_synchronization,
        add_telemetry,
        add_versions,
    ):
        add(commands)
    return parser


def _add_data(commands: argparse._SubParsersAction) -> None:
    """Adds `data` to the benchmarks."""
    add_command(
        commands,
        "data",
        DataOptions,
        _data,
        help="examples per second of tfdp.data.pipeline, beside tf.data and Keras' arrays",
        description="Reads Fashion-MNIST as arrays, a folder of JPEG files and a TFRecord file, in "
        "order and shuffled over all examples, by tfdp.data.pipeline and by hand-written tf.data "
        "in turn, and arrays through model.fit as well; then says what shuffling, a restart and "
        "two workers cost. Files are temporary.",
    )


def _data(options: DataOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"] + ["google_crc32c"] * ("records" in options.sources), parser)
    set_environment()

    from benchmarks.data.rates import run
    from tutorials.datasets import run_with_data

    return run_with_data(run, options, parser)


if __name__ == "__main__":
    sys.exit(main())
