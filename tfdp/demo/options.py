"""What `tfdp demo` can be asked for."""

from __future__ import annotations

import dataclasses
import pathlib

DATASETS = ("digits", "fashion_mnist")
_DEFAULT_EPOCHS = {"digits": 8, "fashion_mnist": 2}


@dataclasses.dataclass(frozen=True)
class DemoOptions:
    """The choices of one demo run; they are checked here.

    Args:
        dataset: `"digits"` (1,797 images of 8x8 pixels, part of scikit-learn) or
            `"fashion_mnist"` (70,000 images of 28x28 pixels).
        replicas: number of replicas of the second run, at least 2, in all its processes together.
        epochs: passes over the training split; None means 8 of the digits, 2 of Fashion-MNIST.
        batch_size: the global batch, which the replicas share; at least one example each.
        output: the PNG file to write.
        seed: seeds the initial weights and the order of the examples.
        processes: in how many processes on this host the second run happens, each with as many of
            the replicas; 1 for this process.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> DemoOptions(replicas=4).passes
        8
    """

    dataset: str = "digits"
    replicas: int = 2
    epochs: int | None = None
    batch_size: int = 64
    output: pathlib.Path = pathlib.Path("tfdp-demo.png")
    seed: int = 7
    processes: int = 1

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ValueError(
                f"`dataset` must be one of {', '.join(DATASETS)}; received {self.dataset!r}; "
                f"do `--dataset {DATASETS[0]}`."
            )
        if self.replicas < 2:
            raise ValueError(
                "`replicas` must be at least 2, for the demo compares them with one device; "
                f"received {self.replicas}; do `--replicas 2`."
            )
        if self.processes < 1:
            raise ValueError(
                f"`processes` must be at least 1; received {self.processes}; do `--processes 2`."
            )
        if self.replicas % self.processes:
            raise ValueError(
                "`replicas` is their number in all processes together, and each process must have "
                f"as many; received {self.replicas} replicas for {self.processes} processes; "
                f"do `--replicas {-(-self.replicas // self.processes) * self.processes}`."
            )
        if self.passes < 1:
            raise ValueError(
                f"`epochs` must be at least 1; received {self.epochs}; do `--epochs 1`."
            )
        if self.batch_size < self.replicas:
            raise ValueError(
                "`batch_size` is the global batch and must hold an example for each replica; "
                f"received {self.batch_size} for {self.replicas} replicas; "
                f"do `--batch-size {32 * self.replicas}`."
            )
        if self.output.suffix.lower() != ".png":
            raise ValueError(
                f"`output` must be a file that ends in .png; received {str(self.output)!r}; "
                f"do `--output {self.output.with_suffix('.png')}`."
            )
        if not self.output.parent.is_dir():
            raise ValueError(
                f"`output` must be in a directory that exists; received {str(self.output)!r}; "
                f"do `mkdir -p {self.output.parent}`."
            )

    @property
    def replicas_per_process(self) -> int:
        """How many of the replicas each process has."""
        return self.replicas // self.processes

    @property
    def passes(self) -> int:
        """`epochs`, or the dataset's default."""
        return _DEFAULT_EPOCHS[self.dataset] if self.epochs is None else self.epochs
