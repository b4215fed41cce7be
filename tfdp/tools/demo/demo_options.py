"""The options of `tfdp demo`."""

import dataclasses
import pathlib

from tfdp.base.command_line import check, option

_EPOCHS = {"digits": 8, "fashion_mnist": 2}


@dataclasses.dataclass(frozen=True)
class DemoOptions:
    """The choices of one demo run.

    Raises:
      ValueError: A value is out of its range.

    >>> DemoOptions(replicas=4).epochs
    8
    """

    dataset: str = option("digits", "real images (%(default)s)", choices=tuple(_EPOCHS))
    # The number in all processes together. Like `epochs`, it is set once the options are made.
    replicas: int = option(None, "GPUs, or logical CPU devices (2, or as many as processes)")
    epochs: int = option(None, "8 for digits, 2 for fashion_mnist", at_least=1, example="1")
    batch_size: int = option(64, "the global batch (%(default)s)")
    output: pathlib.Path = option(
        pathlib.Path("tfdp-demo.png"),
        "where to draw the curves (%(default)s)",
        writes=(".png",),
        metavar="PATH.png",
    )
    seed: int = 7  # of the initial weights and the order of the examples
    processes: int = option(
        1,
        "train the replicas in P processes on this host's CPU, as a cluster (%(default)s: in this "
        "one)",
        at_least=1,
        example="2",
        metavar="P",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.replicas is None:
            object.__setattr__(self, "replicas", max(2, self.processes))
        if self.epochs is None:
            object.__setattr__(self, "epochs", _EPOCHS[self.dataset])
        if self.replicas < 2:
            raise ValueError(
                "`replicas` must be at least 2, for the demo compares them with one device; "
                f"received {self.replicas}; do `--replicas 2`."
            )
        if self.replicas % self.processes:
            raise ValueError(
                "`replicas` is their number in all processes together, and each process must have "
                f"as many; received {self.replicas} replicas for {self.processes} processes; "
                f"do `--replicas {-(-self.replicas // self.processes) * self.processes}`."
            )
        if self.batch_size < self.replicas:
            raise ValueError(
                "`batch-size` is the global batch and must hold an example for each replica; "
                f"received {self.batch_size} for {self.replicas} replicas; "
                f"do `--batch-size {32 * self.replicas}`."
            )

    @property
    def replicas_per_process(self) -> int:
        """The number of replicas that each process has."""
        return self.replicas // self.processes
