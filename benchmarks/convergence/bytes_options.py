"""The options of `benchmarks accuracy-by-bytes`."""

import dataclasses
import math

from benchmarks.convergence.runs import Run
from benchmarks.convergence.sweep import Cell
from benchmarks.convergence.sweep_options import SweepOptions
from benchmarks.convergence.tasks import OPTIMIZERS
from benchmarks.sending import named
from tfdp.base.command_line import option

# Takes the place of the momentum of SGD.
_CORRECTED = "MomentumCorrection"

_INNER = ("Int8()", "Sign()", "TopK(0.01)", "RandomK(0.1)", "PowerSGD(4)")

# The arguments of the strategy, as a program writes them. The first one is the reference.
STRATEGIES = (
    "",
    'compression=Cast("bfloat16")',
    *(f"compression={words}" for inner in _INNER for words in (inner, f"ErrorFeedback({inner})")),
    *(
        f"synchronization={method}({every})"
        for method in ("LocalSGD", "DiLoCo")
        for every in (1, 10, 50, 200)
    ),
    "synchronization=DiLoCo(500)",
    # As Deep Gradient Compression has it, arXiv 1712.01887: of all gradients, with a warm-up.
    *(
        f"compression={_CORRECTED}(TopK(0.001{warmup}, exclude=(), smallest=1))"
        for warmup in ("", ", warmup_steps=100")
    ),
    # These do not send less. What they save is time, and they are here for their accuracy.
    "synchronization=Delayed()",
    "synchronization=Asynchronous(16)",
    "synchronization=BackupWorkers(1)",
)

# All but two tensors of the transformer have fewer than the 4096 numbers below which a compression
# leaves a gradient whole. From 1024 on 97 % of its weights are compressed.
_SMALLEST = {"transformer-one-hot": 1024}

# The optimizer of each task, and where its sweep begins: at the task's rate, or where few epochs
# have shown the best; and below for DiLoCo, whose outer momentum lets the weights move up to
# 0.7 / (1 - 0.9) times as far, and for Delayed, whose gradients are stale.
_OPTIMIZERS = {"transformer": "adam", "transformer-one-hot": "adam"}
_STARTS = {("cnn", "nesterov"): 0.4, ("transformer-one-hot", "adam"): 0.008}
_FACTORS = {"DiLoCo": 0.25, "Delayed": 0.5}


def strategies_of(task: str) -> tuple[str, ...]:
    """Returns the arguments of the strategy for a task, in the order of `STRATEGIES`.

    >>> strategies_of("cnn") == STRATEGIES, strategies_of("transformer-one-hot")[7]
    (True, 'compression=ErrorFeedback(TopK(0.01, smallest=1024))')
    """
    if task not in _SMALLEST:
        return STRATEGIES
    found = []
    for words in STRATEGIES:
        for inner in _INNER:
            fuller = inner[:-1] + ("" if inner.endswith("()") else ", ")
            words = words.replace(inner, f"{fuller}smallest={_SMALLEST[task]})")
        found.append(words)
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class BytesOptions(SweepOptions):
    """The choices of one sweep over ways to send less.

    >>> BytesOptions("cnn", only=(0, 3)).cells
    (('',), ('compression=ErrorFeedback(Int8())',))
    """

    batch: int = option(
        None, "examples of one update (the task's base batch)", at_least=1, example="128"
    )
    only: tuple[int, ...] = option(
        tuple(range(len(STRATEGIES))),
        f"rows of the table, from 0 to {len(STRATEGIES) - 1} (all); 0, whole gradients, always",
        at_least=0,
        example="0,3,5",
        metavar="ROWS",
    )

    optimizer: str = option(
        None,
        "an inner one under a synchronization; adam goes without MomentumCorrection (nesterov; "
        "adam for the transformers)",
        choices=OPTIMIZERS,
        metavar="NAME",
    )

    COMMAND = "accuracy-by-bytes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch is None:
            object.__setattr__(self, "batch", self.described_task.base_batch)
        if self.optimizer is None:
            object.__setattr__(self, "optimizer", _OPTIMIZERS.get(self.task, "nesterov"))
        if max(self.only) >= len(STRATEGIES):
            raise ValueError(
                f"`only` must be rows from 0 to {len(STRATEGIES) - 1}; received {max(self.only)}; "
                "do `--only 0,3`."
            )
        if self.batch % self.replicas:
            fixed = math.ceil(self.batch / self.replicas) * self.replicas
            raise ValueError(
                f"`batch` must be a multiple of the replicas, {self.replicas}; received "
                f"{self.batch}; do `--batch {fixed}`."
            )
        if self.examples is not None and self.examples < self.batch:
            raise ValueError(
                f"`examples` must fill a batch, {self.batch}; received {self.examples}; do "
                f"`--examples {self.batch}`."
            )

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The strategies, whole gradients first; without what does not go with the optimizer."""
        known = strategies_of(self.task)
        chosen = [known[row] for row in sorted({0, *self.only})]
        without = _CORRECTED if self.optimizer not in ("sgd", "nesterov") else None
        return tuple((words,) for words in chosen if without is None or without not in words)

    def run_of(self, cell: Cell, learning_rate: float, seed: int) -> Run:
        """Returns a run with a strategy."""
        (strategy,) = cell
        return Run(
            task=self.task,
            optimizer=self.optimizer,
            batch=self.batch,
            learning_rate=learning_rate,
            seed=seed,
            epochs=self.epochs,
            replicas=self.replicas,
            micro_batch=self.batch,
            examples=self.examples,
            strategy=strategy,
        )

    def starting_rate(self, cell: Cell) -> float:
        """Returns the rate at which the sweep of a strategy begins."""
        (strategy,) = cell
        rate = _STARTS.get(
            (self.task, self.optimizer), self.described_task.learning_rates[self.optimizer]
        )
        return rate * _FACTORS.get(named(strategy).partition("(")[0], 1.0)

    @property
    def reported(self) -> str:
        """The split whose accuracy is reported.

        The lines of the text's test split are indented, and whether a network goes on with blanks
        moves its accuracy there by three points from seed to seed.
        """
        return "validation" if self.described_task.is_text else "test"

    def base_of(self, cell: Cell) -> None:
        """Returns None: the rate of every strategy is swept."""
        return
