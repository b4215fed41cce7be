"""The protocol by which the processes of a strategy meet and agree outside of graphs."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from tfdp.base import rank_comparison
from tfdp.cluster.control_channel import Post
from tfdp.communication.collectives import EngineChoice, Value
from tfdp.communication.engines import Engine, ProgressCounters, Sequences


class Agreement(Protocol):
    """The means by which all processes trace the same collectives, with the same keys."""

    def new_sequences(self) -> Sequences:
        """Returns the records for the collectives of one more traced function."""

    def reach(self, sequences: Sequences, function: str) -> None:
        """Waits until the other processes have traced the same collectives.

        Args:
          sequences: The collectives that the local replicas issue.
          function: The name of the traced function, for errors.

        Raises:
          CollectiveMismatchError: Another process waits with other collectives.
          CollectiveTimeoutError: Another process traces no function.
        """

    def reach_program(
        self, operations: Sequence[str], function: str, described: Callable[[int], str]
    ) -> None:
        """Waits until the other processes have traced a program of the same operations.

        Args:
          operations: A text for each, alike in all processes.
          function: The name of the traced function, for errors.
          described: Returns what to say of this process' operation of a number.

        Raises:
          CollectiveMismatchError: Another process waits with another program.
          CollectiveTimeoutError: Another process traces no function.
        """


class Turns(Protocol):
    """The parts of training batches that ranks which do not wait for each other take in turn."""

    @property
    def parts(self) -> int:
        """The number of parts of each batch."""

    @property
    def seed(self) -> int:
        """A seed for the order of the next dataset, the same on all ranks."""

    def begin(self) -> int | None:
        """Begins a training, and returns the number of the pass over its data to begin with.

        A rank that comes again begins where the others are; None: they have ended this training.
        """

    def fail(self, error: BaseException) -> None:
        """Ends a training with an error: if this rank has read its data, it takes part no more."""

    def dataset(self) -> Callable[[int, int, int | None], int]:
        """Returns what gives turns of the data of the training that has begun.

        Returns:
          A function of the number of a pass over the dataset, of the last part of the pass that
          this rank was given, -1 for none, and of a checksum of the pass's first part, which it
          compares where there is none; it returns the next.
        """


class ProcessGroup(Protocol):
    """The processes that hold the replicas: one, or those of a cluster.

    All processes must make the same calls in the same order. A method that waits for another
    process raises an error when that process is lost or late; `subject` says in the error what was
    being waited for.

    Attributes:
      error: The error with which the last step or `fit` of this process ended, if it was caught.
      settings: Functions that return what each process decides for itself and all must decide
        alike, by the setting's name.
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
    def cluster_rank(self) -> int:
        """The number of this process in the cluster, where it may be a group of its own."""

    @property
    def cluster_size(self) -> int:
        """Number of processes in the cluster."""

    @property
    def turns(self) -> Turns | None:
        """The parts of training batches that this group takes; None: it takes each batch whole."""

    @property
    def local_size(self) -> int:
        """Number of replicas in each process."""

    @property
    def hosts(self) -> Sequence[int]:
        """The index of each process' host."""

    @property
    def counters(self) -> ProgressCounters | None:
        """The counts of collectives that this process' graphs run; None in a process alone."""

    @property
    def said_by(self) -> str:
        """The beginning of errors that name the process: "Rank 1: ", or "" in a process alone."""

    def resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver | None:
        """Returns TensorFlow's description of the cluster; None where there is no cluster."""

    # ---- meeting

    def barrier(self, subject: str) -> None:
        """Waits until all processes have come to the same call."""

    def from_first(self, subject: str, value: object = None, payload: bytes = b"") -> Post:
        """Returns the `value` (JSON) and `payload` that rank 0 passes; rank 0 does not wait."""

    def all_gather(self, subject: str, value: object = None, payload: bytes = b"") -> list[Post]:
        """Returns the `value` (JSON) and `payload` that each process passes, in rank order."""

    def post(self, key: str, value: object) -> None:
        """Tells all processes a `value` (JSON) under a key, without waiting, from any thread."""

    def posted(self, key: str) -> dict[int, Post]:
        """Returns what was told under a key so far, by rank."""

    def wait_for_posts(self, key: str) -> dict[int, Post]:
        """Waits until all processes have told a value under a key, and returns them by rank."""

    def bring_to_first(self, key: str, payload: bytes) -> list[bytes]:
        """Returns on rank 0 the `payload` that each process passes, in rank order; else nothing.

        All processes must call it with the same `key`, from any thread. Rank 0 holds the payloads
        of one call at a time: the others wait until it asks for theirs.
        """

    def compare(
        self, subject: str, options: Mapping[str, object], fix: str = rank_comparison.FOR_SCRIPTS
    ) -> None:
        """Waits for the `options` (JSON) of all processes, and compares them.

        Each sends one message to all. `fix` says what to do where they differ.

        Raises:
          RankMismatchError: Names the option, and which ranks have which value.
        """

    def flush(self) -> None:
        """Waits until the others have what they wait for, even if this process now stands still.

        In the start of MPI it does: it waits for all others, and none of its threads runs.
        """

    def compare_strategies(self, options: Mapping[str, object]) -> int:
        """Compares the `options` of a new strategy in all processes, and returns its number.

        Raises:
          RankMismatchError: Names the option, the rank and both values.
        """

    def sum_eagerly(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over the processes, outside of graphs; meant for single numbers."""

    def gather_eagerly(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Concatenates the processes' tensors along `axis`, outside of graphs."""

    def staleness(self) -> Mapping[int, int]:
        """Returns how often what came here was so many updates late; {} where all come together."""

    # ---- failing

    def fail(self, error: Exception) -> None:
        """Tells all processes of `error`, which ends them."""

    def failure(self, within_seconds: float) -> Exception | None:
        """Returns the error of another process; None if none is told `within_seconds`."""

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that raises another process' error in place of TensorFlow's own.

        It raises RankMismatchError where a graph finds that processes were given other data.
        """

    # ---- starting and tracing alike

    def adopt_random_states(self) -> None:
        """Gives all processes the states of rank 0's random generators in Python and NumPy."""

    def agreement(self, strategy: str) -> Agreement:
        """Returns the agreement on the collectives that the traces of a named strategy issue."""

    def engine(self, choice: EngineChoice, devices: Sequence[str], strategy: str) -> Engine:
        """Makes the chosen engine, which moves tensors between all replicas in graphs.

        Args:
          choice: The engine, the same in all processes.
          devices: The devices of this process' replicas.
          strategy: The name of the strategy, the same in all processes.
        """

    def count_step(self) -> None:
        """Adds to the graph that is being built an operation that counts the step."""
