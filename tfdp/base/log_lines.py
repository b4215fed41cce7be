"""The lines of a run's logs: what `Telemetry` and `tfdp run` write, and `tfdp report` reads.

A line is a JSON object: the kind, and the fields of its class here. A field with a default may be
missing or null. The types say what a reader takes: a `Count` is a whole number of at least 0, a
`Positive` one of at least 1, an `Amount` is finite and at least 0, and what is `object` it does not
use.
"""

from __future__ import annotations  # the reader takes a field's type by its name here

import dataclasses
from collections.abc import Mapping

#: The version of the lines' format; a reader refuses a newer one.
FORMAT = 1

#: The file of the lines that `tfdp run` writes.
ATTEMPTS = "attempts.jsonl"

Count = int
Positive = int
Amount = float


@dataclasses.dataclass(frozen=True, slots=True)
class StartLine:
    """A start of training on one rank; a restarted run has several.

    Args:
      time: When training started, in seconds since 1970.
      rank: The rank of the process that writes.
      world_size: The number of processes.
      host: The name of the host.
      replicas: The number of replicas of all processes.
      topology: The topology by which gradients are summed; None if it is not known.
      optimizer: The optimizer's name.
      parameters: The number of weights that are trained.
      epochs: The epoch up to which `fit` was asked to train.
      steps_per_execution: The model's `steps_per_execution`, as it was compiled.
      jit_compile: Whether XLA compiles the step.
      sample_every: The number of steps from one sampled step, whose parts are measured, to the
        next.
      gradient_accumulation_steps: The optimizer's `gradient_accumulation_steps`.
      format: The version of the lines' format; a reader refuses a newer one.
    """

    time: float
    rank: Count
    world_size: Positive
    host: str
    replicas: Positive
    topology: str | None = None
    optimizer: str | None = None
    parameters: Count | None = None
    epochs: Count | None = None
    steps_per_execution: Count | None = None
    jit_compile: bool = False
    sample_every: Count | None = None
    gradient_accumulation_steps: Count | None = None
    format: Positive = FORMAT
    strategy: object = None
    local_replicas: object = None
    devices: object = None
    steps_per_epoch: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class StepLine:
    """One execution of the train function: `steps` steps, of which `step` is the last.

    :class:`tfdp.callbacks.Telemetry` says what each field is. None means not measured.
    """

    time: float
    step: Positive
    epoch: Count
    steps: Positive
    examples: Count | None
    seconds: Amount
    input_seconds: Amount | None = None
    compute_seconds: Amount | None = None
    communication_seconds: Amount | None = None
    first_bucket_wait_seconds: Amount | None = None
    meeting_seconds: Amount | None = None
    loss: float | None = None
    bytes_sent: Amount | None = None
    loss_scale: float | None = None
    skipped_steps: Count | None = None
    dropped_examples: Count | None = None
    gradient_norm: float | None = None
    trust_ratios: Mapping[str, float] | None = None
    compression_error: float | None = None
    examples_per_second: object = None
    collectives: object = None

    @property
    def first(self) -> int:
        """The number of the first of these steps."""
        return self.step - self.steps + 1


@dataclasses.dataclass(frozen=True, slots=True)
class EpochLine:
    """The end of an epoch: its number from 0, its last step, its time and its logs.

    `staleness` says, of ranks that train apart, how often a change that came to this rank's homes
    in the epoch was so many versions late, by that number.
    """

    time: float
    epoch: Count
    step: Count
    seconds: Amount | None
    logs: Mapping[str, float]
    staleness: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ValidationLine:
    """The end of a validation within an epoch."""

    time: float
    epoch: object = None
    seconds: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class StragglerLine:
    """A rank that came late in an epoch, by how much, and of how many samples."""

    time: float
    epoch: Count
    rank: Count
    host: str | None
    late_seconds: float
    samples: Count | None


@dataclasses.dataclass(frozen=True, slots=True)
class EndLine:
    """The end of training."""

    time: float
    step: object = None
    seconds: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class AttemptLine:
    """One start of all ranks.

    Args:
      time: When it began, in seconds since 1970.
      ranks: The number of ranks.
      seconds: The time from the start to the end.
      first_step, last_step: The steps that a training with a Checkpoint began; None: not known.
      code: The exit code.
      reason: How it ended.
      format: The version of the lines' format.
    """

    time: float
    ranks: Positive
    seconds: Amount
    first_step: Count | None
    last_step: Count | None
    code: Count
    reason: str
    format: Positive = FORMAT


Record = StartLine | StepLine | EpochLine | ValidationLine | StragglerLine | EndLine | AttemptLine

#: The class of each kind of line.
KINDS: Mapping[str, type[Record]] = {
    "start": StartLine,
    "step": StepLine,
    "epoch": EpochLine,
    "validation": ValidationLine,
    "straggler": StragglerLine,
    "end": EndLine,
    "attempt": AttemptLine,
}
