"""The step: what a replica knows while it runs a replica function, kept by thread."""

import contextlib
import dataclasses
import enum
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import Replicas, one_device
from tfdp.keras._tensorflow import strategy_of_context, thread_mode

_thread = threading.local()


@dataclasses.dataclass
class StrategyState:
    """The adapter's state of a strategy, kept as its `adapter_state` as long as it lives.

    Attributes:
      warned_about: The subjects that were warned about.
      batches: A number that all batches of steps which do not wait have made, a `tf.Variable`; None
        before the first.
    """

    warned_about: set[str] = dataclasses.field(default_factory=set)
    batches: Any = None


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
      UPDATE: A write of an optimizer's, or of a round's end.
      SEED: The step of a random generator to its next seed.
      WRITE: A write of one value that all replicas have.
    """

    PROGRAM = enum.auto()
    UPDATE = enum.auto()
    SEED = enum.auto()
    WRITE = enum.auto()


@dataclasses.dataclass
class ReplicaStep:
    """One replica function while it is traced, or run eagerly.

    Attributes:
      strategy: The strategy whose replica this is.
      replicas: The strategy's replicas.
      unseeded: The generator of draws without a seed.
      updates: The updates that the local replicas make together, a `SummedUpdates`.
      phase: The replica's activity; set by `during`.
      written: Keras variables that this replica wrote by itself, each once.
    """

    strategy: tf.distribute.Strategy
    replicas: Replicas
    unseeded: Unseeded
    updates: Any
    phase: Phase = Phase.PROGRAM
    written: list[Any] = dataclasses.field(default_factory=list)

    @property
    def num_replicas(self) -> int:
        """Number of replicas in all processes."""
        return self.replicas.num_replicas

    @property
    def rank(self) -> int:
        """The replica's number among all replicas."""
        return self.replicas.rank

    @property
    def index(self) -> int:
        """The replica's number among those of this process, in the order of its devices."""
        return self.rank % self.replicas.processes.local_size

    @property
    def updating(self) -> bool:
        """Whether an optimizer is at work."""
        return self.phase is Phase.UPDATE

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

    def note_written(self, variable: Any) -> None:
        """Notes that this replica wrote `variable` by itself: see `run.statistics`."""
        if not any(known is variable for known in self.written):
            self.written.append(variable)

    def end(self) -> None:
        """Drops the references to the strategy and its variables.

        TensorFlow keeps gradient functions for ever, and with them the step and its context, which
        would keep the strategy alive.
        """
        context = tf.distribute.get_replica_context()
        strategy: Any = weakref.proxy(self.strategy)
        strategy_of_context.set(context, strategy)
        thread_mode(context).strategy = self.strategy = strategy
        self.written.clear()
        self.unseeded = Unseeded()


def current() -> ReplicaStep | None:
    """Returns the step of the calling replica; None outside of replica functions of tfdp."""
    step = getattr(_thread, "step", None)
    if step is None or one_device.is_traced() or tf.distribute.in_cross_replica_context():
        return None
    return step


@contextlib.contextmanager
def entered(step: ReplicaStep) -> Iterator[None]:
    """Makes `step` the step of the calling thread within the context."""
    outer = getattr(_thread, "step", None)
    _thread.step = step
    try:
        yield
    finally:
        _thread.step = outer
