"""The step: what a replica knows while it runs a replica function, kept by thread."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._tensorflow import strategy_of_context, thread_mode
from tfdp.keras_adapter.ending import Ending
from tfdp.keras_adapter.share import Share
from tfdp.recording import Watch, ending, meeting
from tfdp.replicas import Prepare, Replicas, Trace, Value

_thread = threading.local()


@dataclasses.dataclass
class StrategyState:
    """The adapter's state of a strategy, kept as its `adapter_state` as long as it lives.

    Attributes:
      warned_about: The subjects that replica 0 has warned about.
      count_was_read: Whether the program has asked for the number of replicas outside of steps.
      place: Each replica's `Share.place`; None before the first step.
    """

    warned_about: set[str] = dataclasses.field(default_factory=set)
    count_was_read: bool = False
    place: tf.Variable | None = None


@dataclasses.dataclass
class Unseeded:
    """The seed generator of draws without a seed, shared by the replicas.

    Keras keeps the generator by thread, and each replica runs in a thread of its own.

    Attributes:
      generator: A `keras.random.SeedGenerator`; None before the first draw without a seed.
    """

    generator: Any = None


class Phase(enum.Enum):
    """The activity of a replica, as far as hooks depend on it. Phases nest; the innermost counts.

    Attributes:
      PROGRAM: The program's own code, and Keras' around it.
      COMPILED: A forward pass that XLA compiles.
      LOCAL_UPDATE: The work of an optimizer on the replica's own gradients, to be accumulated.
      UPDATE: The work of an optimizer on gradients that were summed over the replicas.
      PER_EXAMPLE: A loop that runs for all examples or rows at once.
      RESULTS: The computation of metrics' results, while variables read as sums over the replicas.
      DRAW: A draw of random numbers for the whole batch.
      SEED: The step of a random generator to its next seed.
      SUM: A sum of tfdp's own over the replicas, whose values need no weight.
      WRITE: A write of one value that all replicas have.
      NOTED: A write of the replica's own value; the end of the step makes one value of all.
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
      replicas: The strategy's replicas.
      trace: The replica's identity, as far as Python may know it while the step is traced.
      unseeded: The generator of draws without a seed.
      phase: The replica's activity; set by `during`.
      in_backward: Whether a tape's backward pass is under way, in which other tapes may give parts
        of gradients; set by `going_backward`.
      share: The replica's part of the batch inside a step of Keras' trainer; set by `sharing`.
      in_trainer: Whether it is, or was, a step of Keras' trainer.
      written: Keras variables that this replica wrote by itself, each once.
      differing: The `written` variables to which other replicas may have written other values.
      waiting: The tensors that the program holds in place of gradients that wait to be summed.
      draws: Random numbers whose use the end of the step checks: see `random.draws`.
      inner: What is done in branches and loops: see `variables.branches`.
      linear: Operations that may use waiting gradients, since they commute with the sum: see
        `gradients.arriving`.
      updated: The variables of the update under way, in the order of its gradients.
      to_compress: The keys of variables whose gradients wait for the update to be summed; None: all
        wait.
      compiles: Whether XLA compiles what it can of the step.
      of_keras: Whether the step, and how it computes its loss, are Keras' own.
      loss: The `keras.losses.Loss` that is being evaluated.
      is_summand: Whether the value of `loss` goes nowhere but to the tape and into the logs.
      is_masked: Whether `loss` leaves out the entries that a mask says.
      added: The losses that each layer gave to `add_loss`.
      metrics: The metrics whose results cover all replicas; set by `asking_for_all`.
      metric_sums: The sums of the metrics' variables, by the variables' ids, while they hold.
      ending: What is summed at the step's end.
    """

    strategy: tf.distribute.Strategy
    replicas: Replicas
    trace: Trace
    unseeded: Unseeded
    phase: Phase = Phase.PROGRAM
    in_backward: bool = False
    share: Share | None = None
    in_trainer: bool = False
    written: list[Any] = dataclasses.field(default_factory=list)
    differing: list[Any] = dataclasses.field(default_factory=list)
    waiting: list[Any] = dataclasses.field(default_factory=list)
    draws: list[Any] = dataclasses.field(default_factory=list)
    inner: list[Any] = dataclasses.field(default_factory=list)
    linear: list[Any] = dataclasses.field(default_factory=list)
    updated: Sequence[Any] = ()
    to_compress: frozenset[str] | None = None
    compiles: bool = False
    of_keras: bool = False
    loss: Any = None
    is_summand: bool = False
    is_masked: bool = False
    added: weakref.WeakKeyDictionary[Any, list[Any]] = dataclasses.field(
        default_factory=weakref.WeakKeyDictionary
    )
    metrics: Sequence[Any] = ()
    metric_sums: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ending = Ending(self._sum_at_end)

    @property
    def num_replicas(self) -> int:
        """Number of replicas in all processes."""
        return self.replicas.num_replicas

    @property
    def is_alone(self) -> bool:
        """Whether each replica updates by itself: see `gradients.rounds`."""
        return self.replicas.exchange.synchronization is not None

    @property
    def replica_id(self) -> tf.Tensor:
        """The replica's number among all replicas, a scalar int32."""
        return self.replicas.replica_id

    @property
    def of_first(self) -> tf.Tensor:
        """Whether the replica is the first of all, a boolean scalar."""
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
        """Sets the replica's phase within the context."""
        outer, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = outer

    @contextlib.contextmanager
    def going_backward(self) -> Iterator[None]:
        """Sets `in_backward` within the context."""
        outer, self.in_backward = self.in_backward, True
        try:
            yield
        finally:
            self.in_backward = outer

    @contextlib.contextmanager
    def sharing(self, share: Share) -> Iterator[None]:
        """Sets the replica's part of the batch within the context."""
        outer, self.share = self.share, share
        self.in_trainer = True
        try:
            yield
        finally:
            self.share = outer

    @contextlib.contextmanager
    def asking_for_all(self, metrics: Sequence[Any]) -> Iterator[None]:
        """Makes the results of these `metrics` cover all replicas within the context."""
        outer, self.metrics = self.metrics, metrics
        try:
            yield
        finally:
            self.metrics = outer

    def asks_for_all(self, metric: Any) -> bool:
        """Returns whether the result of `metric` covers all replicas."""
        return any(known is metric for known in self.metrics)

    def note_written(self, variable: Any, may_differ: bool) -> None:
        """Notes that this replica wrote `variable` by itself: see `variables.statistics`."""
        if not any(known is variable for known in self.written):
            self.written.append(variable)
        if may_differ:
            self.differing.append(variable)

    def end(self) -> None:
        """Drops the references to the strategy and its variables.

        TensorFlow keeps gradient functions for ever, and with them the step and its context, which
        would keep the strategy alive.
        """
        context = tf.distribute.get_replica_context()
        strategy: Any = weakref.proxy(self.strategy)
        strategy_of_context.set(context, strategy)
        thread_mode(context).strategy = self.strategy = strategy
        for noted in (self.written, self.differing, self.inner):
            noted.clear()
        for kept in (self.waiting, self.draws, self.linear):
            kept.clear()
        for held in (self.added, self.metric_sums, self.ending):
            held.clear()
        self.loss, self.metrics, self.unseeded = None, (), Unseeded()
        self.updated = ()

    def warn_once(self, about: str, message: str, *arguments: Any) -> None:
        """Logs a warning on the first replica, once for each subject in the strategy's life.

        Args:
          about: The subject.
          message: The text, with the format of `logging`.
          arguments: The values that the text is formatted with.
        """
        said = self.strategy.adapter_state.warned_about
        if self.trace.of_first and about not in said:
            said.add(about)
            logging.getLogger("tfdp").warning(message, *arguments)

    def sum(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over the replicas, in as few collectives as possible; differentiable.

        The step waits here for the other replicas. What it wants at its end goes through `ending`.
        """
        if not values or self.num_replicas == 1:
            return list(values)
        with self.during(Phase.SUM), meeting(values) as sums:
            sums += self.replicas.sum(values)
        return sums

    def _sum_at_end(self, values: Sequence[Value]) -> list[Value]:
        if not values or self.num_replicas == 1:
            return list(values)
        ending(values)
        with self.during(Phase.SUM):
            return self.replicas.sum(values)

    def sum_prepared(
        self,
        values: Sequence[Value],
        prepare: Prepare | None,
        watch: Watch | None = None,
        compress: bool = False,
    ) -> list[Value]:
        """Sums values over the replicas without a gradient: see `Replicas.sum_prepared`."""
        if self.num_replicas == 1 or not values:
            return list(values)
        return self.replicas.sum_prepared(values, prepare, watch=watch, compress=compress)


def current() -> Step | None:
    """Returns the step of the calling replica; None outside of replica functions of tfdp."""
    step = getattr(_thread, "step", None)
    if step is None or tf.distribute.in_cross_replica_context():
        return None
    return step


def share() -> Share | None:
    """Returns the share of the current step of Keras' trainer; None outside of such a step."""
    step = current()
    return None if step is None else step.share


@contextlib.contextmanager
def entered(step: Step) -> Iterator[None]:
    """Makes `step` the step of the calling thread within the context."""
    outer = getattr(_thread, "step", None)
    _thread.step = step
    try:
        yield
    finally:
        _thread.step = outer


def replica_count_was_read(strategy: Any, reader: str) -> None:
    """Notes that a module has asked for the number of replicas: see `gradients.weighing`.

    Args:
      strategy: The strategy that was asked.
      reader: The module's name. Outside of steps the questions of TensorFlow, Keras and tfdp
        themselves are not noted.
    """
    step = getattr(_thread, "step", None)
    if step is None:
        if reader.partition(".")[0] not in ("keras", "tensorflow", "tfdp"):
            strategy.adapter_state.count_was_read = True
    elif step.share is not None and not (step.writes_alike or step.phase is Phase.SUM):
        step.share.count_was_read = True


def knows_replica_count(strategy: Any) -> bool:
    """Returns whether the program has asked for the number of replicas outside of steps."""
    return strategy.adapter_state.count_was_read


def at_least_float32(dtype: Any) -> tf.DType:
    """Returns the dtype in which `dtype` is summed: float64 for float64, else float32."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32
