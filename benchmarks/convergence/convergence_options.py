"""The options of `benchmarks convergence`."""

import dataclasses

from benchmarks.convergence.recipes import RECIPES
from benchmarks.convergence.runs import Run
from benchmarks.convergence.sweep import Cell
from benchmarks.convergence.sweep_options import SweepOptions
from benchmarks.convergence.tasks import OPTIMIZERS, starting_rate
from tfdp.base.command_line import option


@dataclasses.dataclass(frozen=True)
class ConvergenceOptions(SweepOptions):
    """The choices of one sweep; the task's presets replace those that are left out.

    Raises:
      ValueError: A value is out of its range, or the values do not go together.

    >>> ConvergenceOptions("mlp", batches=(64, 4096)).run("lamb", 4096, 0.016, seed=0).micro_batch
    1024
    """

    optimizers: tuple[str, ...] = option(
        OPTIMIZERS,
        f"with commas between: {', '.join(OPTIMIZERS)}; or all (all); sgd with the base batch is "
        "always trained",
        choices=OPTIMIZERS,
        metavar="NAMES",
    )
    batches: tuple[int, ...] = option(
        None,
        "examples of one update, with commas between (the task's)",
        example="64,4096",
        metavar="SIZES",
    )
    all_at_base: bool = option(False, "train every optimizer with the base batch too, not only sgd")
    micro_batch: int = option(
        None,
        "the most examples of one step; more are accumulated (the task's)",
        at_least=1,
        example="512",
        metavar="N",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.described_task
        for name, value in {"batches": known.batches, "micro_batch": known.micro_batch}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_batches()

    def _check_batches(self) -> None:
        for batch in (*self.batches, self.base_batch):
            step = min(batch, self.micro_batch)
            if batch < 1 or batch % step or step % self.replicas:
                fixed = max(step // self.replicas, 1) * self.replicas
                fixed *= max(round(batch / fixed), 1)
                raise ValueError(
                    f"each of `batches` must be a multiple of the micro-batch, {self.micro_batch}, "
                    f"or below it and a multiple of the {self.replicas} replicas; received "
                    f"{batch}; do `--batches {self.base_batch},{fixed}`, or another "
                    "`--micro-batch` or `--replicas`."
                )
        smallest = max(min(max(self.batches), self.micro_batch), self.base_batch)
        if self.examples is not None and self.examples < smallest:
            raise ValueError(
                f"`examples` must fill a micro-batch, {smallest}; received {self.examples}; "
                f"do `--examples {smallest}`."
            )
        if self.examples is not None:
            largest = max((*self.batches, self.base_batch))
            if self.run("sgd", largest, 1.0, 0).updates(self.examples) < 1:
                raise ValueError(
                    f"`examples` must fill the largest batch once in all epochs, {largest}; "
                    f"received {self.examples} in {self.epochs} epochs; do "
                    f"`--examples {largest}`."
                )

    @property
    def base_batch(self) -> int:
        """The small batch that the others are compared with."""
        return self.described_task.base_batch

    @property
    def cells(self) -> tuple[tuple[str, int], ...]:
        """Every optimizer and batch of the table: the reference first, then by batch."""
        reference = ("sgd", self.base_batch)
        return (
            reference,
            *(
                (optimizer, batch)
                for batch in sorted(set(self.batches))
                for optimizer in dict.fromkeys(self.optimizers)
                if (optimizer, batch) != reference
                and (batch != self.base_batch or self.all_at_base)
            ),
        )

    def run(self, optimizer: str, batch: int, learning_rate: float, seed: int) -> Run:
        """Returns the run of these choices."""
        return Run(
            task=self.task,
            optimizer=optimizer,
            batch=batch,
            learning_rate=learning_rate,
            seed=seed,
            epochs=self.epochs,
            replicas=self.replicas,
            micro_batch=self.micro_batch,
            examples=self.examples,
        )

    def run_of(self, cell: Cell, learning_rate: float, seed: int) -> Run:
        """Returns a run of an optimizer at a batch."""
        optimizer, batch = cell
        return self.run(optimizer, batch, learning_rate, seed)

    def starting_rate(self, cell: Cell) -> float:
        """Returns the rate at which the sweep of an optimizer at a batch begins."""
        optimizer, batch = cell
        return starting_rate(self.described_task, optimizer, batch)

    def base_of(self, cell: Cell) -> tuple[Cell, float] | None:
        """Returns the base batch and the batch over it, where the rate is scaled linearly."""
        optimizer, batch = cell
        if RECIPES[optimizer].tuned_at_every_batch or batch == self.base_batch:
            return None
        return (optimizer, self.base_batch), batch / self.base_batch
