"""The options of `benchmarks data`."""

import dataclasses
import pathlib

from tfdp.base.command_line import check, option

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
