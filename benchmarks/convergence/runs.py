"""One training: everything that decides its outcome, and the outcome."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.convergence.recipes import RECIPE_VERSION

# The engine with which `tfdp run` starts the replicas of a method, each in a process of its own: it
# is processes that are late.
_ENGINES = {"Asynchronous": "tensorflow", "BackupWorkers": "mpi"}


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that decides how a training ends; two equal runs are one.

    Args:
      task: One of `TASKS`.
      optimizer: One of `RECIPES`.
      batch: The number of examples of one update.
      learning_rate: The highest rate.
      seed: The seed of the initial weights and of the order of the examples.
      epochs: How often each example is seen.
      replicas: The number of logical CPU devices, or of processes.
      micro_batch: The most examples of one step over all replicas.
      examples: The number of examples of the training split; None: all.
      recipe_version: The version of the recipes.
      strategy: The arguments of the strategy, beside its devices, as a program writes them.

    >>> run = Run("mlp", "lamb", 4096, 0.016, 0, 20, 2, 1024)
    >>> run.step_batch, run.gradient_accumulation_steps
    (1024, 4)
    """

    task: str
    optimizer: str
    batch: int
    learning_rate: float
    seed: int
    epochs: int
    replicas: int
    micro_batch: int
    examples: int | None = None
    recipe_version: int = RECIPE_VERSION
    strategy: str = ""

    @property
    def step_batch(self) -> int:
        """The number of examples of one step over all replicas."""
        return min(self.batch, self.micro_batch)

    @property
    def gradient_accumulation_steps(self) -> int:
        """The number of steps of one update."""
        return self.batch // self.step_batch

    @property
    def engine(self) -> str | None:
        """The engine of the processes that the replicas are; None: they are devices of one.

        >>> Run("cnn", "sgd", 128, 0.1, 0, 4, 4, 128, strategy="synchronization=Delayed()").engine
        """
        name = self.strategy.removeprefix("synchronization=").partition("(")[0]
        return _ENGINES.get(name)

    def steps(self, examples: int) -> int:
        """Returns the number of steps of the training, without examples that fill no step."""
        return examples // self.step_batch * self.epochs

    def updates(self, examples: int) -> int:
        """Returns the number of updates; windows of accumulation run over the ends of epochs."""
        return self.steps(examples) // self.gradient_accumulation_steps

    def __str__(self) -> str:
        sent = f", {self.strategy}" if self.strategy else ""
        rate = f"rate {self.learning_rate:.4g}"
        return f"{self.optimizer} {self.batch}{sent}, {rate}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Args:
      val_accuracy: The accuracy on the validation split, in [0, 1]; 0 if the run diverged.
      test_accuracy: The accuracy on the test split, in [0, 1]; 0 if the run diverged.
      test_loss: The mean cross-entropy in nats; None if the run diverged.
      diverged: Whether the loss was infinite or not a number, which ended the run.
      loss_by_epoch: The loss of the training split while it was seen; finite values only.
      val_accuracy_by_epoch: The validation accuracy at the end of each epoch. Ranks that train
        apart have one, the last, and one loss, of all that rank 0 has seen.
      updates: The number of updates of the weights.
      seconds: The time of the training, without the start of the process.
      versions: The versions of the libraries that it was trained with.
      bytes_sent: The bytes of gradients and weights that each replica sent, of rank 0; None: they
        were not counted.
      dropped_examples: The examples whose gradients came late and did not count; None: all count.
      staleness: How often a rank's change came so many other changes late, by the number as text;
        None: ranks wait for each other.
    """

    val_accuracy: float
    test_accuracy: float
    test_loss: float | None
    diverged: bool
    loss_by_epoch: tuple[float, ...]
    val_accuracy_by_epoch: tuple[float, ...]
    updates: int
    seconds: float
    versions: Mapping[str, str]
    bytes_sent: int | None = None
    dropped_examples: int | None = None
    staleness: Mapping[str, int] | None = None


# What older lines of results lack.
_ADDED = {"strategy": "", "bytes_sent": None, "dropped_examples": None, "staleness": None}


def to_json(run: Run, outcome: Outcome) -> dict[str, Any]:
    """Returns a run and its outcome as one flat object."""
    return dataclasses.asdict(run) | dataclasses.asdict(outcome)


def from_json(content: Mapping[str, Any]) -> tuple[Run, Outcome]:
    """Returns the run and the outcome that `to_json` was given.

    Older lines have neither a strategy nor what was counted: their strategy had no further
    arguments.

    Raises:
      ValueError: A field is missing or unknown, or is of the wrong kind.
    """
    names = {field.name for kind in (Run, Outcome) for field in dataclasses.fields(kind)}
    if isinstance(content, Mapping):
        content = _ADDED | dict(content)
    if not isinstance(content, Mapping) or content.keys() != names:
        found = set(content) if isinstance(content, Mapping) else {type(content).__name__}
        raise ValueError(f"the fields {sorted(names ^ found)} are missing or unknown")
    try:
        run = Run(**{field.name: content[field.name] for field in dataclasses.fields(Run)})
        values = {field.name: content[field.name] for field in dataclasses.fields(Outcome)}
        for name in ("loss_by_epoch", "val_accuracy_by_epoch"):
            values[name] = tuple(float(value) for value in values[name])
        for value in (run.learning_rate, values["val_accuracy"], values["test_accuracy"]):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{value!r} is no number")
        hash(run)
        return run, Outcome(**values)
    except TypeError as error:
        raise ValueError(str(error)) from error
