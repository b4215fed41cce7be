"""What a replica knows of the step that it is taking part in."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.recording import Watch, meeting

_thread = threading.local()


@dataclasses.dataclass
class Share:
    """A replica's part of the global batch, in a step of Keras' trainer.

    Attributes:
      examples: Number of examples on this replica, a floating scalar.
      place: The number of examples on this replica, and on all earlier ones: a variable (2), int64,
        the strategy's only one. A `tf.function` inside the step may outlive it, and so must hold no
        tensors of it.
      fraction: `examples` over those of the global batch, a floating scalar; 0 for an empty share.
        It is cast where it is used.
      scaled_at_apply: Whether gradients are multiplied by `fraction` when they are applied, which
        is how a raw mean in a user's `train_step` comes out right. Keras' own step multiplies each
        term of the loss instead.
      num_replicas: Number of replicas in sync.
      rows: `examples` where it is known while the step is traced.
      user_divides: Whether the step has asked for the number of replicas, to divide by it.
    """

    examples: tf.Tensor
    place: tf.Variable
    fraction: tf.Tensor
    scaled_at_apply: bool
    num_replicas: int
    rows: int | None = None
    user_divides: bool = False

    @property
    def applied(self) -> tf.Tensor:
        """What gradients are multiplied by when they are applied, where `scaled_at_apply`.

        Asked for as late as can be: the step may ask for the number of replicas on its way.
        """
        return self.fraction * (self.num_replicas if self.user_divides else 1)

    def select(self, tensor: tf.Tensor) -> tf.Tensor:
        """`tensor`, or zeros where this replica has no examples (it may be NaN then)."""
        return self.scaled(tensor, None)

    def scaled(self, tensor: tf.Tensor, factor: tf.Tensor | None) -> tf.Tensor:
        """`tensor * factor`, or zeros where this replica has no examples."""
        return tf.cond(
            self.examples > 0,
            lambda: (
                tf.identity(tensor) if factor is None else tensor * tf.cast(factor, tensor.dtype)
            ),
            lambda: tf.zeros_like(tensor),
        )


@dataclasses.dataclass
class Unseeded:
    """What draws without a seed take theirs from, for all replicas: Keras keeps it by thread.

    Attributes:
      generator: A `keras.random.SeedGenerator`; None before the first such draw.
    """

    generator: Any = None


class Phase(enum.Enum):
    """What a replica is doing, as far as hooks act on it. Phases nest; the innermost counts.

    Attributes:
      PROGRAM: The program's own code, and Keras' around it.
      COMPILED: A forward pass that XLA compiles.
      LOCAL_UPDATE: An optimizer that holds the replica's own gradients, for it may accumulate.
      UPDATE: An optimizer that holds gradients summed over replicas.
      RESULTS: Metrics' results, from variables that read as their sums over replicas.
      DRAW: A draw of random numbers for the whole batch.
      SEED: A random generator that moves on.
    """

    PROGRAM = enum.auto()
    COMPILED = enum.auto()
    LOCAL_UPDATE = enum.auto()
    UPDATE = enum.auto()
    RESULTS = enum.auto()
    DRAW = enum.auto()
    SEED = enum.auto()


@dataclasses.dataclass
class Step:
    """One replica function while it is traced, or run eagerly.

    Attributes:
      context: The replica's context.
      rank: The replica's.
      unseeded: The generator of draws without a seed.
      phase: What the replica is doing; set by `during`.
      share: The replica's part of the batch inside a step of Keras' trainer; set by `sharing`.
      written: Keras variables that this replica wrote by itself, each once.
    """

    context: tf.distribute.ReplicaContext
    rank: int
    unseeded: Unseeded
    phase: Phase = Phase.PROGRAM
    share: Share | None = None
    written: list[Any] = dataclasses.field(default_factory=list)

    @property
    def num_replicas(self) -> int:
        """Number of replicas in sync."""
        return self.strategy.extended.num_replicas

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy whose replica this is."""
        return self.context.strategy

    @property
    def compiling(self) -> bool:
        """Whether XLA compiles what is traced now."""
        return self.phase is Phase.COMPILED

    @property
    def updating(self) -> bool:
        """Whether an optimizer is at work."""
        return self.phase in (Phase.LOCAL_UPDATE, Phase.UPDATE)

    @property
    def writes_alike(self) -> bool:
        """Whether what is written now has the same value on all replicas."""
        return self.updating or self.phase is Phase.SEED

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Makes `phase` what the replica is doing."""
        outer, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = outer

    @contextlib.contextmanager
    def sharing(self, share: Share) -> Iterator[None]:
        """Makes `share` the replica's part of the batch."""
        outer, self.share = self.share, share
        try:
            yield
        finally:
            self.share = outer

    def note_written(self, variable: Any) -> None:
        """Notes that this replica wrote `variable` by itself: see `statistics`."""
        if not any(known is variable for known in self.written):
            self.written.append(variable)

    def sum(self, values: Sequence[Any]) -> list[Any]:
        """Sums each value over the replicas, in as few collectives as can be; differentiable."""
        return list(self.context.all_reduce("SUM", list(values))) if values else []

    def meet(self, values: Sequence[Any]) -> list[Any]:
        """As `sum`, where the step cannot go on without the sums: how long it waits is recorded."""
        with meeting(values) as sums:
            sums += self.sum(values)
        return sums

    def sum_prepared(
        self,
        values: Sequence[Any],
        prepare: Callable[[tf.Tensor], tf.Tensor] | None,
        watch: Watch | None = None,
    ) -> list[Any]:
        """As `sum`, of `prepare`d values, without a gradient."""
        if self.num_replicas == 1 or not values:
            return list(values)
        return self.strategy.extended.sum_prepared(values, prepare, watch=watch)


def current() -> Step | None:
    """The step of the calling thread's replica; None outside, or in another strategy's replica."""
    step = getattr(_thread, "step", None)
    if step is None or tf.distribute.in_cross_replica_context():
        return None
    return step


def share() -> Share | None:
    """The share of the current step of Keras' trainer, if there is one."""
    step = current()
    return None if step is None else step.share


@contextlib.contextmanager
def entered(step: Step) -> Iterator[None]:
    """Makes `step` the calling thread's."""
    outer = getattr(_thread, "step", None)
    _thread.step = step
    try:
        yield
    finally:
        _thread.step = outer


def replica_count_was_read() -> None:
    """Notes that a `train_step` asks for the number of replicas.

    One that does scales its raw losses by it, as tf.distribute's guide says; one that does not was
    written for one device. Either is right: see `optimizers._weight`.
    """
    step = getattr(_thread, "step", None)
    if step is not None and step.share is not None and not step.writes_alike:
        step.share.user_divides = True


def at_least_float32(dtype: Any) -> tf.DType:
    """The dtype in which numbers of `dtype` are summed: float64 for itself, else float32."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def is_tfdp(strategy: Any) -> bool:
    """Whether `strategy` is one of tfdp's."""
    return getattr(getattr(strategy, "extended", None), "is_tfdp", False)
