"""The options of `benchmarks data`."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

from tfdp.command_line import add_command, check, option, require, set_environment

SOURCES = ("arrays", "images", "records")
MOST_EXAMPLES = 60_000  # of Fashion-MNIST's training split


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """The choices of one benchmark run.

    Raises:
      ValueError: A value is out of its range.

    >>> DataOptions(sources=("arrays",)).rounds
    5
    """

    sources: tuple[str, ...] = option(
        SOURCES,
        f"with commas between, of {', '.join(SOURCES)} (all)",
        choices=SOURCES,
        metavar="NAMES",
    )
    examples: int = option(
        MOST_EXAMPLES,
        "of the arrays and the records (%(default)s)",
        at_least=1,
        at_most=MOST_EXAMPLES,
        metavar="N",
    )
    image_files: int = option(
        2_000, "JPEG files (%(default)s)", at_least=1, at_most=MOST_EXAMPLES, metavar="N"
    )
    image_size: int = option(
        224, "their height and width, a multiple of 28 (%(default)s)", metavar="N"
    )
    batch_size: int = option(256, "examples of a batch (%(default)s)", at_least=1, metavar="N")
    rounds: int = option(5, "timed epochs of each side (%(default)s)", at_least=1, metavar="N")
    json: pathlib.Path | None = option(None, "write the raw results", writes=(), metavar="FILE")

    def __post_init__(self) -> None:
        check(self)
        if self.image_size < 28 or self.image_size % 28:
            raise ValueError(
                "`image-size` must be a multiple of 28, as Fashion-MNIST's pixels are repeated; "
                f"received {self.image_size}; do `--image-size 224`."
            )


def add_data(commands: argparse._SubParsersAction) -> None:
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
    from tfdp.demo.images import DataUnavailableError

    try:
        return run(options)
    except DataUnavailableError as error:
        parser.error(str(error))
