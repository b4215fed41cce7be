"""The group of one process, which needs no communication."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfdp.base import rank_comparison
from tfdp.cluster.control_channel import Post
from tfdp.communication.collectives import EngineChoice, Value, collective_failure
from tfdp.communication.engines import (
    Engine,
    ProgressCounters,
    Sequences,
    TensorFlowEngine,
)
from tfdp.communication.replicas.process_group import Turns


class OneProcess:
    """A group of one process: no method waits, and each returns the process' own values.

    It implements `ProcessGroup`, which says what the methods are for.

    Args:
      local_size: Number of replicas.

    >>> alone = OneProcess(local_size=2)
    >>> alone.rank, alone.world_size, alone.from_first("a number", 3).value
    (0, 1, 3)
    """

    def __init__(self, local_size: int = 1) -> None:
        self.rank, self.world_size, self.local_size = 0, 1, local_size
        self.hosts = [0]
        self.error: str | None = None
        self.settings: dict[str, Callable[[], bool]] = {}
        self.counters: ProgressCounters | None = None
        self._posts: dict[str, Post] = {}

    @property
    def cluster_rank(self) -> int:
        """0: the process is all that there is."""
        return 0

    @property
    def cluster_size(self) -> int:
        """1: the process is all that there is."""
        return 1

    @property
    def turns(self) -> Turns | None:
        """None: the process takes each batch whole."""
        return None

    @property
    def said_by(self) -> str:
        """Nothing: errors need not name the process."""
        return ""

    def resolver(self) -> None:
        """Returns None, for there is no cluster to describe."""

    def barrier(self, subject: str) -> None:
        """Returns at once."""

    def from_first(self, subject: str, value: object = None, payload: bytes = b"") -> Post:
        """Returns the given value and payload."""
        return Post(value, payload)

    def all_gather(self, subject: str, value: object = None, payload: bytes = b"") -> list[Post]:
        """Returns the given value and payload as the only post."""
        return [Post(value, payload)]

    def post(self, key: str, value: object) -> None:
        """Keeps the value."""
        self._posts[key] = Post(value)

    def posted(self, key: str) -> dict[int, Post]:
        """Returns what was posted here."""
        return {0: self._posts[key]} if key in self._posts else {}

    def wait_for_posts(self, key: str) -> dict[int, Post]:
        """Returns what was posted here."""
        return self.posted(key)

    def bring_to_first(self, key: str, payload: bytes) -> list[bytes]:
        """Returns the given payload as the only one."""
        return [payload]

    def compare(
        self, subject: str, options: Mapping[str, object], fix: str = rank_comparison.FOR_SCRIPTS
    ) -> None:
        """Does nothing, for there are no other options to compare with."""

    def flush(self) -> None:
        """Does nothing, for there is nobody to send to."""

    def compare_strategies(self, options: Mapping[str, object]) -> int:
        """Returns 0: the number serves other processes to find the strategy, and there are none."""
        return 0

    def sum_eagerly(self, values: Sequence[Value]) -> list[Value]:
        """Returns the values, which are their own sums."""
        return list(values)

    def gather_eagerly(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the tensor, for there is no other to join it with."""
        return value

    def staleness(self) -> Mapping[int, int]:
        """Returns {}: no update waits for another, or all come together."""
        return {}

    def fail(self, error: Exception) -> None:
        """Does nothing, for there is no other process to tell."""

    def failure(self, within_seconds: float) -> Exception | None:
        """Returns None, for there is no other process that could fail."""
        return None

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that raises errors as they are, and the first one of collectives.

        One replica alone has none, and goes on after that of another strategy.
        """
        return collective_failure.explained() if self.local_size > 1 else contextlib.nullcontext()

    def adopt_random_states(self) -> None:
        """Does nothing, for this process is rank 0, whose states all adopt."""

    def agreement(self, strategy: str) -> NothingToAgreeOn:
        """Returns an agreement without other parties."""
        return NothingToAgreeOn()

    def engine(self, choice: EngineChoice, devices: Sequence[str], strategy: str) -> Engine:
        """Makes TensorFlow's engine, the only one within a process."""
        return TensorFlowEngine(devices)

    def count_step(self) -> None:
        """Does nothing, for no other process asks how far this one is."""


class NothingToAgreeOn:
    """The `Agreement` of a process that is alone."""

    def new_sequences(self) -> Sequences:
        """Returns records that compare and number the collectives of this process' replicas."""
        return Sequences()

    def reach(self, sequences: Sequences, function: str) -> None:
        """Returns at once."""
        return  # AutoGraph, which converts what graphs call, warns of a function without a body

    def reach_program(
        self, operations: Sequence[str], function: str, described: Callable[[int], str]
    ) -> None:
        """Returns at once."""
