"""What `tfdp bench data` can be asked for. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

SOURCES = ("arrays", "images", "records")
MOST_EXAMPLES = 60_000  # of Fashion-MNIST's training split


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """The choices of one benchmark run; they are checked here.

    Args:
        sources: some of `SOURCES`.
        examples: of the arrays and the records.
        image_files: JPEG files of the folder of images.
        image_size: their height and width, a multiple of Fashion-MNIST's 28.
        batch_size: examples of a batch.
        rounds: timed epochs of each side.
        json: a file for the raw results, or None.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> DataOptions(sources=("arrays",)).rounds
        5
    """

    sources: tuple[str, ...] = SOURCES
    examples: int = MOST_EXAMPLES
    image_files: int = 2_000
    image_size: int = 224
    batch_size: int = 256
    rounds: int = 5
    json: pathlib.Path | None = None

    def __post_init__(self) -> None:
        if not self.sources or not set(self.sources) <= set(SOURCES):
            raise ValueError(
                f"`sources` must be some of {', '.join(SOURCES)}; received "
                f"{','.join(self.sources)!r}; do `--sources {','.join(SOURCES)}`."
            )
        for name in ("examples", "image_files"):
            value = getattr(self, name)
            if not 1 <= value <= MOST_EXAMPLES:
                raise ValueError(
                    f"`{_flag(name)}` must be 1 to {MOST_EXAMPLES}, which Fashion-MNIST has; "
                    f"received {value}; do `--{_flag(name)} {self._default(name)}`."
                )
        for name in ("batch_size", "rounds"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(
                    f"`{_flag(name)}` must be at least 1; received {value}; do "
                    f"`--{_flag(name)} {self._default(name)}`."
                )
        if self.image_size < 28 or self.image_size % 28:
            raise ValueError(
                "`image-size` must be a multiple of 28, as Fashion-MNIST's pixels are repeated; "
                f"received {self.image_size}; do `--image-size 224`."
            )
        if self.json is not None and not self.json.parent.is_dir():
            raise ValueError(
                f"`json` must be in a directory that exists; received {str(self.json)!r}; "
                f"do `mkdir -p {self.json.parent}`."
            )

    def _default(self, name: str) -> Any:
        return type(self).__dataclass_fields__[name].default


def _flag(name: str) -> str:
    return name.replace("_", "-")
