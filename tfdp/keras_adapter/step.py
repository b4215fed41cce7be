"""What a replica knows of the step that it is taking part in."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdp.keras_adapter._tensorflow import strategy_of_context, thread_mode
from tfdp.recording import Watch, meeting
from tfdp.replicas import Prepare, Replicas, Trace, Value

_thread = threading.local()


@dataclasses.dataclass
class Share:
    """A replica's part of the global batch, in a step of Keras' trainer.

    Attributes:
      examples: Number of examples on this replica, a floating scalar.
      place_of: Returns `place`, a weak reference: TensorFlow keeps gradient functions for ever, and
        with them what they refer to.
      fraction: `examples` over those of the global batch, a floating scalar; 0 without examples. It
        is cast where it is used.
      rows: The number of rows where it is known while the step is traced.
      may_be_empty: Whether this replica may be without examples, or another.
      custom_loss: What the user says that a step of one's own differentiates: see
        `DataParallelStrategy`.
      windows: Which gradients wait until an optimizer's window closes.
      count_was_read: Whether the step has asked for the number of replicas.
    """

    examples: tf.Tensor
    place_of: Callable[[], tf.Variable]
    fraction: tf.Tensor
    rows: int | None = None
    may_be_empty: bool = True
    custom_loss: str | None = None
    windows: Windows | None = None
    count_was_read: bool = False

    @property
    def place(self) -> tf.Variable:
        """Numbers of examples and rows: a variable (4), int64, the strategy's only one.

        The examples on this replica, those on all earlier ones, the rows that this one computes on,
        for without examples it has a stand-in, and the batch's examples. A `tf.function` inside the
        step may outlive it, and so must hold no tensors of it.
        """
        return self.place_of()

    @property
    def divides(self) -> bool:
        """Whether the user says that the step divides by the number of replicas."""
        return self.custom_loss == "divided"

    def check_rows(self, tensor: tf.Tensor, like: tf.Tensor | None) -> None:
        """Makes sure, when the step runs, that `tensor` is as long as `like`, or as the share."""
        tf.debugging.assert_equal(
            tf.shape(tensor, tf.int64)[0],
            tf.convert_to_tensor(self.place)[2] if like is None else tf.shape(like, tf.int64)[0],
            "What a step of your own differentiates must be computed from all examples of the "
            "batch, but a function was given, or a layer gave, fewer or more rows. Choose among "
            "those of the whole batch, `x = tfdp.whole_batch(x)`, or give `custom_loss` to the "
            "strategy.",
        )

    @property
    def has_examples(self) -> tf.Tensor:
        """Whether what this replica computes counts; in any graph within the step."""
        return tf.convert_to_tensor(self.place)[0] > 0

    def counted(self, tensor: Any) -> Any:
        """A small `tensor`, or zeros where this replica has no examples."""
        if not self.may_be_empty:
            return tensor
        return tf.where(self.has_examples, tensor, tf.zeros_like(tensor))

    def select(self, tensor: tf.Tensor) -> tf.Tensor:
        """`tensor`, or zeros where a stand-in made it, which may be NaN then."""
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


class Windows(Protocol):
    """Which gradients wait to be summed until an optimizer's window closes."""

    def wait(self, variables: Sequence[Any]) -> bool:
        """Whether those with respect to `variables` do."""


@dataclasses.dataclass
class StrategyState:
    """What the adapter keeps of a strategy, as long as that lives: its `adapter_state`.

    Attributes:
      warned_about: What replica 0 has warned of.
      count_was_read: Whether the program has asked for the number of replicas outside of steps.
      place: Each replica's `Share.place`; None before the first step.
    """

    warned_about: set[str] = dataclasses.field(default_factory=set)
    count_was_read: bool = False
    place: tf.Variable | None = None


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
      PER_EXAMPLE: A loop that is run for all examples or rows at once.
      RESULTS: Metrics' results, from variables that read as their sums over replicas.
      DRAW: A draw of random numbers for the whole batch.
      SEED: A random generator that moves on.
      SUM: A sum of tfdp's own, of values that can be summed as they are.
      WRITE: A write of what all replicas write together.
      NOTED: A write of the replica's own, of which the end of the step makes one value for all.
    """

    PROGRAM = enum.auto()
    COMPILED = enum.auto()
    LOCAL_UPDATE = enum.auto()
    UPDATE = enum.auto()
    PER_EXAMPLE = enum.auto()
    RESULTS = enum.auto()
    DRAW = enum.auto()
    SEED = enum.auto()
    SUM = enum.auto()
    WRITE = enum.auto()
    NOTED = enum.auto()


@dataclasses.dataclass
class Step:
    """One replica function while it is traced, or run eagerly.

    Attributes:
      strategy: The strategy whose replica this is.
      replicas: What its replicas do together.
      trace: Whose step it is, as far as Python may know while it is traced.
      unseeded: The generator of draws without a seed.
      phase: What the replica is doing; set by `during`.
      share: The replica's part of the batch inside a step of Keras' trainer; set by `sharing`.
      in_trainer: Whether it is, or was, a step of Keras' trainer.
      written: Keras variables that this replica wrote by itself, each once.
      differing: Those of them that other replicas may have written differently.
      waiting: What was given out for gradients that wait to be summed.
      draws: Random numbers of which it is to be seen for whom they are: see `draws`.
      linear: Operations that may use these, for their sums are those of the sums: see `arriving`.
      loss: The `keras.losses.Loss` that is being evaluated.
      added: By layer, what that gave to `add_loss`.
      metrics: The metrics whose results are those of all replicas; set by `asking_for_all`.
    """

    strategy: tf.distribute.Strategy
    replicas: Replicas
    trace: Trace
    unseeded: Unseeded
    phase: Phase = Phase.PROGRAM
    share: Share | None = None
    in_trainer: bool = False
    written: list[Any] = dataclasses.field(default_factory=list)
    differing: list[Any] = dataclasses.field(default_factory=list)
    waiting: list[Any] = dataclasses.field(default_factory=list)
    draws: list[Any] = dataclasses.field(default_factory=list)
    linear: list[Any] = dataclasses.field(default_factory=list)
    loss: Any = None
    added: weakref.WeakKeyDictionary[Any, list[Any]] = dataclasses.field(
        default_factory=weakref.WeakKeyDictionary
    )
    metrics: Sequence[Any] = ()

    @property
    def num_replicas(self) -> int:
        """Number of replicas in sync."""
        return self.replicas.num_replicas

    @property
    def replica_id(self) -> tf.Tensor:
        """The replica's number among all, a scalar int32."""
        return self.replicas.replica_id

    @property
    def of_first(self) -> tf.Tensor:
        """Whether the replica is the first of all, a scalar."""
        return tf.equal(self.replica_id, 0)

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
        return self.updating or self.phase in (Phase.SEED, Phase.WRITE)

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
        self.in_trainer = True
        try:
            yield
        finally:
            self.share = outer

    @contextlib.contextmanager
    def asking_for_all(self, metrics: Sequence[Any]) -> Iterator[None]:
        """Makes the results of these `metrics` those of all replicas."""
        outer, self.metrics = self.metrics, metrics
        try:
            yield
        finally:
            self.metrics = outer

    def asks_for_all(self, metric: Any) -> bool:
        """Whether the result of `metric` is that of all replicas."""
        return any(known is metric for known in self.metrics)

    def note_written(self, variable: Any, may_differ: bool) -> None:
        """Notes that this replica wrote `variable` by itself: see `statistics`."""
        if not any(known is variable for known in self.written):
            self.written.append(variable)
        if may_differ:
            self.differing.append(variable)

    def end(self) -> None:
        """Lets go of the strategy and its variables.

        TensorFlow keeps gradient functions for ever, and with them the step or its context.
        """
        context = tf.distribute.get_replica_context()
        strategy: Any = weakref.proxy(self.strategy)
        strategy_of_context.set(context, strategy)
        thread_mode(context).strategy = self.strategy = strategy
        for kept in (self.written, self.differing, self.waiting, self.draws, self.linear):
            kept.clear()
        self.added.clear()
        self.loss, self.metrics, self.unseeded = None, (), Unseeded()

    def warn_once(self, about: str, message: str, *arguments: Any) -> None:
        """Logs the first replica's warning, once in the strategy's life for what it is `about`."""
        said = self.strategy.adapter_state.warned_about
        if self.trace.of_first and about not in said:
            said.add(about)
            logging.getLogger("tfdp").warning(message, *arguments)

    def sum(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over the replicas, in as few collectives as can be; differentiable."""
        if not values:
            return []
        with self.during(Phase.SUM):
            return self.replicas.sum(values)

    def meet(self, values: Sequence[Value]) -> list[Value]:
        """As `sum`, where the step cannot go on without the sums: how long it waits is recorded."""
        with meeting(values) as sums:
            sums += self.sum(values)
        return sums

    def sum_prepared(
        self,
        values: Sequence[Value],
        prepare: Prepare | None,
        watch: Watch | None = None,
    ) -> list[Value]:
        """As `sum`, of `prepare`d values, without a gradient."""
        if self.num_replicas == 1 or not values:
            return list(values)
        return self.replicas.sum_prepared(values, prepare, watch=watch)


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


def replica_count_was_read(strategy: Any, reader: str) -> None:
    """Notes that a module asks for the number of replicas, in a step or outside: see `weighing`.

    Args:
      strategy: Whose replicas they are.
      reader: The module's name. Outside of steps TensorFlow, Keras and tfdp ask for it, too.
    """
    step = getattr(_thread, "step", None)
    if step is None:
        if reader.partition(".")[0] not in ("keras", "tensorflow", "tfdp"):
            strategy.adapter_state.count_was_read = True
    elif step.share is not None and not (step.writes_alike or step.phase is Phase.SUM):
        step.share.count_was_read = True


def knows_replica_count(strategy: Any) -> bool:
    """Whether the program has asked for the number of replicas outside of steps."""
    return strategy.adapter_state.count_was_read


def at_least_float32(dtype: Any) -> tf.DType:
    """The dtype in which numbers of `dtype` are summed: float64 for itself, else float32."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32
