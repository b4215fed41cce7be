"""The words of `tfdp bench data`."""

from __future__ import annotations

import argparse
import pathlib

from tfdp.arguments import require, set_environment
from tfdp.bench.data.options import SOURCES, DataOptions


def add_bench_data(measures: argparse._SubParsersAction) -> None:
    """Adds the measure to `tfdp bench`."""
    parser = measures.add_parser(
        "data",
        help="examples per second of tfdp.data.pipeline, beside tf.data and Keras' arrays",
        description="Reads Fashion-MNIST as arrays, a folder of JPEG files and a TFRecord file, in "
        "order and shuffled over all examples, by tfdp.data.pipeline and by hand-written tf.data "
        "in turn, and arrays through model.fit as well; then says what shuffling, a restart and "
        "two workers cost. Files are temporary.",
    )
    default = DataOptions()
    parser.add_argument(
        "--sources",
        type=lambda text: tuple(text.split(",")),
        default=default.sources,
        metavar="NAMES",
        help=f"with commas between, of {', '.join(SOURCES)} (all)",
    )
    for name, text in (
        ("examples", "of the arrays and the records"),
        ("image-files", "JPEG files"),
        ("image-size", "their height and width, a multiple of 28"),
        ("batch-size", "examples of a batch"),
        ("rounds", "timed epochs of each side"),
    ):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=getattr(default, name.replace("-", "_")),
            metavar="N",
            help=f"{text} (%(default)s)",
        )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the raw results")
    parser.set_defaults(handler=_bench_data, parser=parser)


def _bench_data(parsed: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = parsed.parser
    try:
        options = DataOptions(
            sources=parsed.sources,
            examples=parsed.examples,
            image_files=parsed.image_files,
            image_size=parsed.image_size,
            batch_size=parsed.batch_size,
            rounds=parsed.rounds,
            json=parsed.json,
        )
    except ValueError as error:
        parser.error(str(error))
    require(["tensorflow"] + ["google_crc32c"] * ("records" in options.sources), parser)
    set_environment()

    from tfdp.bench.data.run import run
    from tfdp.bench.datasets import DataUnavailableError

    try:
        return run(options)
    except DataUnavailableError as error:
        parser.error(str(error))
