"""The simple case of a group of processes: one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfdp.cluster.board import Post
from tfdp.collectives import ProgressCounters, Sequences, Value, next_key


class OneProcess:
    """A process that is alone: it waits for nobody, and what it says is what all say.

    See `ProcessGroup` for what its methods are for.

    Args:
      local_size: Number of replicas.

    >>> alone = OneProcess(local_size=2)
    >>> alone.rank, alone.world_size, alone.from_first("a number", 3).value
    (0, 1, 3)
    """

    def __init__(self, local_size: int = 1) -> None:
        self.rank, self.world_size, self.local_size = 0, 1, local_size
        self.hosts = [0]
        self.said_by = ""
        self.error: str | None = None
        self.settings: dict[str, Callable[[], bool]] = {}
        self.counters: ProgressCounters | None = None

    def resolver(self) -> None:
        """There is no cluster to describe."""

    def barrier(self, subject: str) -> None:
        """Returns at once."""

    def from_first(self, subject: str, value: object = None, payload: bytes = b"") -> Post:
        """Gives what it is given."""
        return Post(value, payload)

    def all_gather(self, subject: str, value: object = None, payload: bytes = b"") -> list[Post]:
        """Gives what it is given, as the only post."""
        return [Post(value, payload)]

    def compare(self, subject: str, options: Mapping[str, object]) -> None:
        """Has nothing to compare with."""

    def compare_strategies(self, options: Mapping[str, object]) -> int:
        """Strategies of one process need no number: no other must find them by it."""
        return 0

    def sum_eagerly(self, values: Sequence[Value]) -> list[Value]:
        """Gives the values: they are their sums."""
        return list(values)

    def gather_eagerly(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Gives the tensor: there is no other to join it with."""
        return value

    def fail(self, error: Exception) -> None:
        """Has nobody to tell."""

    def failure(self, within_seconds: float) -> None:
        """Nothing goes wrong in another process."""

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """What TensorFlow says of an error is all that there is to know."""
        return contextlib.nullcontext()

    def adopt_random_states(self) -> None:
        """The states are rank 0's."""

    def agreement(self, strategy: str) -> NothingToAgreeOn:
        """Every trace has keys of its own."""
        return NothingToAgreeOn()

    def count_step(self) -> None:
        """Nobody asks how far this process is."""


class NothingToAgreeOn:
    """The `Agreement` of a process that is alone."""

    def key_of_group(self, group: tuple[int, ...]) -> int:
        """A number that nothing in this process has."""
        return next_key()

    def new_sequences(self) -> Sequences:
        """Records that compare the replicas of this process, and number what these issue."""
        return Sequences()

    def reach(self, sequences: Sequences, function: str) -> None:
        """Returns at once."""
