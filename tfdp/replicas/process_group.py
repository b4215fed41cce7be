"""What the processes of a strategy tell each other outside of graphs, and agree on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from tfdp.cluster.board import Post
from tfdp.collectives import ProgressCounters, Sequences, Value


class Agreement(Protocol):
    """How the traces of all processes come to the same collectives, with the same keys."""

    def key_of_group(self, group: tuple[int, ...]) -> int:
        """A number for a group of ranks, alike in all processes."""

    def new_sequences(self) -> Sequences:
        """Records the collectives of one more traced function."""

    def reach(self, sequences: Sequences, function: str) -> None:
        """Waits until the other processes have traced the same.

        Args:
          sequences: What the local replicas issue.
          function: What was traced, for errors.

        Raises:
          CollectiveMismatchError: Another process has traced something else, and waits as well.
          CollectiveTimeoutError: Another process traces nothing.
        """


class ProcessGroup(Protocol):
    """The processes that the replicas are in: one, or those of a cluster.

    All processes must make the same calls in the same order. What waits for another process raises
    where that is lost, or late; `subject` names for errors what is being waited for.

    Attributes:
      error: What the last step or `fit` of this process ended with, if it was caught.
      settings: What each process decides for itself, and all must decide alike, by its name.
    """

    error: str | None
    settings: dict[str, Callable[[], bool]]

    # ---- who and where

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def world_size(self) -> int:
        """Number of processes."""

    @property
    def local_size(self) -> int:
        """Number of replicas in each process."""

    @property
    def hosts(self) -> Sequence[int]:
        """For each process the index of its host."""

    @property
    def counters(self) -> ProgressCounters | None:
        """Counts the collectives of this process' graphs; None where no other waits for them."""

    @property
    def said_by(self) -> str:
        """How errors begin that must name the process: "Rank 1: ", or nothing where it is alone."""

    def resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver | None:
        """The cluster as TensorFlow describes it; None where there is none."""

    # ---- meeting

    def barrier(self, subject: str) -> None:
        """Waits until all processes have come to the same call."""

    def from_first(self, subject: str, value: object = None, payload: bytes = b"") -> Post:
        """Gives what rank 0 calls it with, JSON and bytes; rank 0 does not wait."""

    def all_gather(self, subject: str, value: object = None, payload: bytes = b"") -> list[Post]:
        """Gives what each process calls it with, JSON and bytes, in the order of ranks."""

    def compare(self, subject: str, options: Mapping[str, object]) -> None:
        """Waits for the `options`, JSON, of all processes, and compares them.

        Raises:
          RankMismatchError: Names the option, the rank and both values.
        """

    def compare_strategies(self, options: Mapping[str, object]) -> int:
        """Gives the number of a new strategy, whose options are alike in all processes.

        Raises:
          RankMismatchError: Names the option, the rank and both values.
        """

    def sum_eagerly(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over processes, outside of graphs; for single numbers."""

    def gather_eagerly(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Concatenates the processes' tensors along `axis`, outside of graphs."""

    # ---- failing

    def fail(self, error: Exception) -> None:
        """Tells all processes of `error`, with which they end."""

    def failure(self, within_seconds: float) -> Exception | None:
        """Gives what went wrong in another process; waits for word of it."""

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Raises what went wrong in another process in place of what TensorFlow says of it."""

    # ---- starting and tracing alike

    def adopt_random_states(self) -> None:
        """Makes Python's and NumPy's random states of rank 0 those of all processes."""

    def agreement(self, strategy: str) -> Agreement:
        """How the traces of a strategy, by its name, come to the same collectives."""

    def count_step(self) -> None:
        """Counts, in the graph that is being built, that a replica function begins."""
