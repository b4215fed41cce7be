"""The kinds of lines in a rank's log: start, step, epoch, straggler and end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfdp.tools.report.log_values import Fields, LogError

FORMAT = 1


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
    """

    time: float
    rank: int
    world_size: int
    host: str
    replicas: int
    topology: str | None = None
    optimizer: str | None = None
    parameters: int | None = None
    epochs: int | None = None
    steps_per_execution: int | None = None
    jit_compile: bool = False
    sample_every: int | None = None
    gradient_accumulation_steps: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StepLine:
    """One execution of the train function: `steps` steps, of which `step` is the last.

    Times are in seconds, and of all these steps together, on this rank. None means not measured.

    Args:
      time: When the execution ended, in seconds since 1970.
      step: The number of the last step, from 1 over the whole run.
      epoch: The number of the epoch, from 0.
      steps: The number of steps in this execution.
      examples: The examples of all replicas in these steps; None under a strategy that is not
        tfdp's.
      seconds: The time of these steps, and of what came before the first of an epoch.
      input_seconds: The part of `seconds` spent in waiting for input.
      compute_seconds: The time of forward and backward passes; on sampled steps only.
      communication_seconds: From the backward pass's end to the last bucket's sum; sampled.
      first_bucket_wait_seconds: From the arrival at the first bucket to its sum; sampled.
      meeting_seconds: The wait for the few numbers of all ranks that the loss itself needs, before
        the backward pass; sampled.
      loss: The loss as Keras logs it.
      bytes_sent: The bytes that this rank sent.
      loss_scale: The loss scale after these steps.
      skipped_steps: The number of these steps that did not change the weights.
      gradient_norm: The norm of the reduced, unscaled gradient before clipping; sampled.
      compression_error: The norm of what compression has lost over that of the gradients; sampled.
      trust_ratios: `min`, `median` and `max` over the layers; sampled, of LARS and LAMB.
    """

    time: float
    step: int
    epoch: int
    steps: int
    examples: int | None
    seconds: float
    input_seconds: float | None = None
    compute_seconds: float | None = None
    communication_seconds: float | None = None
    first_bucket_wait_seconds: float | None = None
    meeting_seconds: float | None = None
    loss: float | None = None
    bytes_sent: float | None = None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    gradient_norm: float | None = None
    trust_ratios: Mapping[str, float] | None = None
    compression_error: float | None = None

    @property
    def first(self) -> int:
        """The number of the first of these steps."""
        return self.step - self.steps + 1


@dataclasses.dataclass(frozen=True, slots=True)
class EpochLine:
    """The end of an epoch: its number from 0, its last step, its time and its logs."""

    time: float
    epoch: int
    step: int
    seconds: float | None
    logs: Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class StragglerLine:
    """A rank that came late in an epoch, by how much, and of how many samples."""

    time: float
    epoch: int
    rank: int
    host: str | None
    late_seconds: float
    samples: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class EndLine:
    """The end of training."""

    time: float


Record = StartLine | StepLine | EpochLine | StragglerLine | EndLine


def record(values: Mapping[str, Any], where: str) -> Record | None:
    """Returns the record of a line; None for kinds that the report does not use.

    Args:
      values: The line's JSON object.
      where: The line's file and number, for errors.

    Raises:
      LogError: A value is missing or not of its kind, or the format is newer than this tfdp.

    >>> record({"kind": "end", "time": 12.5, "step": 3, "seconds": 9}, "rank0.jsonl, line 9")
    EndLine(time=12.5)
    """
    fields = Fields(values, where)
    kind = fields.text("kind")
    read = _READERS.get(kind)
    return None if read is None else read(fields, fields.number("time"))


def check_format(format_: int, what: str) -> None:
    """Refuses a format that this tfdp does not know.

    Raises:
      LogError: The format is newer.

    >>> check_format(1, "`logs/manifest.json`")
    """
    if format_ > FORMAT:
        raise LogError(
            f"{what} must be of format {FORMAT}, which this tfdp reads, but is of format {format_}:"
            " a newer tfdp wrote it. Do `pip install --upgrade 'tfdp[report]'`."
        )


def _start(fields: Fields, time: float) -> StartLine:
    check_format(fields.whole("format", 1), fields.where)
    return StartLine(
        time=time,
        rank=fields.whole("rank"),
        world_size=fields.whole("world_size", 1),
        host=fields.text("host"),
        replicas=fields.whole("replicas", 1),
        topology=fields.text_or_none("topology"),
        optimizer=fields.text_or_none("optimizer"),
        parameters=fields.whole_or_none("parameters"),
        epochs=fields.whole_or_none("epochs"),
        steps_per_execution=fields.whole_or_none("steps_per_execution"),
        jit_compile=fields.text_or_none("jit_compile") == "True",
        sample_every=fields.whole_or_none("sample_every"),
        gradient_accumulation_steps=fields.whole_or_none("gradient_accumulation_steps"),
    )


def _step(fields: Fields, time: float) -> StepLine:
    return StepLine(
        time=time,
        step=fields.whole("step", 1),
        epoch=fields.whole("epoch"),
        steps=fields.whole("steps", 1),
        examples=fields.whole_or_none("examples"),
        seconds=fields.number("seconds", 0),
        input_seconds=fields.seconds_or_none("input_seconds"),
        compute_seconds=fields.seconds_or_none("compute_seconds"),
        communication_seconds=fields.seconds_or_none("communication_seconds"),
        first_bucket_wait_seconds=fields.seconds_or_none("first_bucket_wait_seconds"),
        meeting_seconds=fields.seconds_or_none("meeting_seconds"),
        loss=fields.number_or_none("loss"),
        bytes_sent=fields.seconds_or_none("bytes_sent"),
        loss_scale=fields.number_or_none("loss_scale"),
        skipped_steps=fields.whole_or_none("skipped_steps"),
        gradient_norm=fields.number_or_none("gradient_norm"),
        trust_ratios=fields.numbers("trust_ratios") or None,
        compression_error=fields.number_or_none("compression_error"),
    )


def _epoch(fields: Fields, time: float) -> EpochLine:
    return EpochLine(
        time=time,
        epoch=fields.whole("epoch"),
        step=fields.whole("step"),
        seconds=fields.seconds_or_none("seconds"),
        logs=fields.numbers("logs"),
    )


def _straggler(fields: Fields, time: float) -> StragglerLine:
    return StragglerLine(
        time=time,
        epoch=fields.whole("epoch"),
        rank=fields.whole("rank"),
        host=fields.text_or_none("host"),
        late_seconds=fields.number("late_seconds"),
        samples=fields.whole_or_none("samples"),
    )


_READERS: dict[str, Callable[[Fields, float], Record]] = {
    "start": _start,
    "step": _step,
    "epoch": _epoch,
    "straggler": _straggler,
    "end": lambda fields, time: EndLine(time),
}
