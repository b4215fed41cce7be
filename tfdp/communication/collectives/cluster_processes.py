"""The processes of a cluster as the strategy sees them.

The board carries what is small or happens outside of graphs. TensorFlow's collective runtime
carries what graphs send.
"""

import atexit
import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base import hooks, threads
from tfdp.base.words import error_of_user_code
from tfdp.cluster import mpi, secret
from tfdp.cluster.control_channel import ControlChannel
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.socket_filter import admitted, check_admitted
from tfdp.cluster.spec import Cluster
from tfdp.cluster.watchdog import Progress, Watchdog
from tfdp.communication.collectives import (
    collective_failure,
    data_mismatch,
    eager,
    introductions,
    random_states,
    runtime,
)
from tfdp.communication.collectives.agreement import CollectiveAgreement
from tfdp.communication.collectives.engine_choice import EngineChoice
from tfdp.communication.collectives.meetings import Meetings
from tfdp.communication.collectives.payloads import Value
from tfdp.communication.engines import (
    Engine,
    ProgressCounters,
    TensorFlowEngine,
    mpi_transport,
)
from tfdp.communication.engines.host import (
    ArrivalSums,
    Driver,
    FirstArrivals,
    HostEngine,
    Lane,
    collective_programs,
)
from tfdp.communication.engines.mpi_transport import MpiTransport
from tfdp.errors import ClusterError, CollectiveMismatchError

# The setting that `fit` reads from its model.
STOP_TRAINING = "`stop_training`"

# The errors that TensorFlow raises where a collective ended because of another rank.
_CONSEQUENCES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)

# The errors that mark the end of the data, which every rank finds by itself.
_ENDS = (tf.errors.OutOfRangeError, StopIteration)

# The key of reductions outside of graphs, whose order is that of the program. Those in graphs have
# keys from 1 on; this is the last one.
_KEY_OUTSIDE_OF_GRAPHS = -1


class ClusterProcesses(Meetings):
    """All processes of the cluster, with this one among them.

    Attributes:
      rank: The rank of this process.
      world_size: The number of processes.
      turns: None: the ranks share each batch.
      local_size: The number of devices per process, the same in all.
      addresses: The address where TensorFlow listens in each process, "host:port".
      hosts: For each process the index of its host.
      board: Carries what the processes tell each other outside of TensorFlow.
      counters: Counts the collectives of this process' graphs.
      error: The error that the last step or `fit` of this process ended with, if it was caught.
      settings: The settings that each rank decides for itself but all must decide alike, by name.
        Where the ranks wait for each other, the first that differs is named. Another thread reads
        them.
    """

    turns = None

    def __init__(
        self, cluster: Cluster, local_size: int, timeout_seconds: float, startup_seconds: float
    ) -> None:
        own = introductions.own(local_size)
        shared = secret.in_environment()
        meeting = meet(cluster, own, introductions.difference, startup_seconds, shared)
        self.rank, self.world_size = cluster.rank, cluster.world_size
        self.local_size, self.cluster = local_size, cluster
        self._connections = meeting.connections
        self.board = ControlChannel(
            self.rank, self.world_size, meeting.connections, timeout_seconds
        )
        self._strategies = 0
        self.addresses = meeting.addresses
        self.hosts = meeting.host_numbers
        try:
            networks = admitted(meeting.addresses)
            if networks is not None:
                check_admitted(self.rank, meeting.hosts, networks)
            runtime.start(self.rank, meeting.addresses, networks)
        except ClusterError as error:
            self.board.close(str(error))
            raise
        finally:
            meeting.close_port()
        self.board.on_failure(lambda error: runtime.abort(str(error)))
        self.counters = ProgressCounters()
        self._driver = Driver(on_error=self._tell_if_ranks_differ)
        self._transport: MpiTransport | None = None
        self._arrivals: list[FirstArrivals] = []
        self.board.on_failure(lambda error: self._driver.abort(str(error)))
        self.error: str | None = None
        self._turn = threading.RLock()  # of the threads that run steps
        self._uses_nccl = self._nccl_ended = False
        self._uncaught: str | None = None
        self.settings: dict[str, Callable[[], bool]] = {
            "`tf.config.run_functions_eagerly`": tf.config.functions_run_eagerly,
            STOP_TRAINING: lambda: False,
        }
        self._watchdog = Watchdog(self.board, self.progress)
        self._say_goodbye_at_exit()
        random_states.adopt_seeds(self.board)
        self.board.barrier("the start of TensorFlow on all ranks")

    def resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """Returns the cluster as TensorFlow describes it."""
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": self.addresses}),
            task_type="worker",
            task_id=self.rank,
        )

    def progress(self) -> Progress:
        """Returns how far the ranks of this process are in their collectives."""
        settings = {name: _read(setting) for name, setting in self.settings.items()}
        read, driver = self.counters.read(), self._driver
        begun, done = driver.begun, driver.done
        return Progress(
            steps=read.steps,
            begun=read.begun + begun,
            done=read.done + done,
            operation=read.operation or driver.operation * (begun > done),
            error=self.error or "",
            settings=settings,
        )

    def compare_strategies(self, options: Mapping[str, object]) -> int:
        """Returns the number of a new strategy, after comparing its options between all ranks.

        Raises:
          RankMismatchError: Names the option, the rank and both values.
        """
        self.compare("the options of a strategy", options)
        self._strategies += 1
        return self._strategies

    def flush(self) -> None:
        """Waits until the others have what they wait for, even if this process now stands still."""

        def check() -> None:
            if self.board.failure is not None:
                raise self.board.failure

        self._connections.flush(self.rank, self.board.timeout_seconds, check)

    def sum_eagerly(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over processes, outside of graphs: see `eager`."""
        by_engine = None if self._transport is None else self._all_reduce
        return eager.sums(self.board, values, by_engine)

    def gather_eagerly(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Concatenates the processes' tensors along `axis`, outside of graphs: see `eager`."""
        return eager.gather(self.board, value, axis)

    def _all_reduce(self, own: np.ndarray) -> np.ndarray:
        """Sums an array over processes by the transport of the engine, outside of graphs."""
        assert self._transport is not None
        lane = Lane(self._transport, self.rank, 1, _KEY_OUTSIDE_OF_GRAPHS)
        collective = collective_programs.all_reduce(
            own, lane, tuple(range(self.world_size)), self.hosts
        )
        self._driver.run(collective, "a reduction outside of graphs")
        return collective.result

    # ---- tracing

    def agreement(self, strategy: str) -> CollectiveAgreement:
        """Makes the agreement that brings a strategy's traces to the same collectives."""
        return CollectiveAgreement(self.board, self.local_size, strategy)

    def engine(self, choice: EngineChoice, devices: Sequence[str], strategy: str) -> Engine:
        """Makes the chosen engine for a strategy; all processes must make the same.

        Args:
          choice: The engine, as `engine_choice.choose` returned it.
          devices: The devices of this process' ranks.
          strategy: The name of the strategy, alike in all processes.
        """
        first = self.rank * self.local_size
        hosts = [host for host in self.hosts for _ in range(self.local_size)]
        if choice.launcher is None:

            def key_of_group(group: tuple[int, ...], keys: int = 1) -> int:
                return self.board.number(f"{strategy} {keys} of group {group}", keys)

            made = TensorFlowEngine(devices, first, len(hosts), key_of_group, self.counters)
            self._uses_nccl = self._uses_nccl or made.is_nccl
            return made
        if self._transport is None:
            self._transport = mpi_transport.transport(choice.launcher, self.rank)
            mpi.leave_to_caller()  # which is what says goodbye at the exit
        return HostEngine(choice.name, self._transport, self._driver, devices, first, hosts)

    def arrival_sums(self, choice: EngineChoice, device: str, count: int) -> ArrivalSums:
        """Makes sums that wait for `count` ranks, for the one replica of each, by MPI's engine."""
        assert choice.launcher is not None
        apart = mpi_transport.transport(choice.launcher, self.rank)
        self._arrivals.append(FirstArrivals(apart, self.rank, self.hosts, count))
        return ArrivalSums(self._arrivals[-1], self._driver, device)

    def count_step(self) -> None:
        """Counts, in the graph that is being built, that a replica function begins."""
        self.counters.step()

    # ---- failing

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raises the error that ended the work in the cluster, in place of TensorFlow's own.

        Where ranks were given other data than others, it is a RankMismatchError.

        One thread at a time may be within it: the collectives of two would meet each other's. Any
        other error is noted. A rank that catches it goes on only once all others have come from
        an error too; otherwise its next step would meet the step that the others are still in.

        Raises:
          ClusterError: NCCL moves the tensors, and a step has failed before.
          CollectiveMismatchError: Another thread of this process is within it; all ranks end.
        """
        if not threads.is_of_program():  # a replica's, whose caller is within it
            yield
            return
        if not self._turn.acquire(blocking=False):
            error = CollectiveMismatchError(
                f"{self.said_by}in several processes one thread must run steps at a time, but the "
                f"thread `{threading.current_thread().name}` begins one while another is in one: "
                "their collectives would meet each other's. Run all steps in one thread, or in one "
                "after the other, in the same order on all ranks."
            )
            self.fail(error)
            raise error
        try:
            with self._explained():
                yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        if self._nccl_ended:
            raise ClusterError(
                f"{self.said_by}after a step that failed, NCCL needs new processes, but this rank "
                f"caught the error ({self.error}) and goes on. NCCL's groups end with such a step, "
                "or wait for what never comes. Let the error end the script, and start all ranks "
                "again from a checkpoint: `tfdp run --max-restarts 1` does."
            )
        if self.error is not None:
            self.board.all_gather("the work after an error", self.error)
            self.error = None
        try:
            # Where another rank is gone that is what is told, each time.
            first = (
                collective_failure.explained()
                if self.board.failure is None
                else contextlib.nullcontext()
            )
            with first, data_mismatch.explained(self.rank):
                yield
        except _ENDS:
            raise
        except _CONSEQUENCES as error:
            failure = self.board.wait_for_failure(5.0)
            if failure is None:
                self._note(error)
                raise
            raise failure from error
        except (Exception, KeyboardInterrupt) as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        """Notes the error in a line, as the others are told it."""
        # Those of Python come before a step runs, or after it.
        while_it_ran = isinstance(error, (tf.errors.OpError, KeyboardInterrupt))
        self._nccl_ended = self._nccl_ended or (self._uses_nccl and while_it_ran)
        self.error = f"{type(error).__name__}: {collective_failure.last_line(str(error))[:300]}"

    def _tell_if_ranks_differ(self, error: Exception) -> None:
        if isinstance(error, CollectiveMismatchError):
            self.fail(CollectiveMismatchError(f"Rank {self.rank}: {error}"))

    # ---- start and end

    def _say_goodbye_at_exit(self) -> None:
        def end() -> None:
            if self._uncaught is None and mpi.ends_together():
                # The others may go on for as long as they want.
                self.board.timeout_seconds = float("inf")
                with contextlib.suppress(ClusterError):
                    self.board.barrier("the end of the script on all ranks")
            for each in self._arrivals:
                each.end()
            failed = self._uncaught is not None or self.board.failure is not None
            mpi.leave_to_caller(abandon=failed)
            self._watchdog.stop()
            self.board.close(self._uncaught)
            mpi.finalize()

        self.watch_uncaught()
        atexit.register(end)

    def watch_uncaught(self) -> None:
        """Lets the other ranks know the error that this process ends with."""
        hooks.put(sys, "excepthook", self._note_uncaught)

    def _note_uncaught(
        self, original: Callable[..., Any], kind: Any, value: Any, trace: Any
    ) -> None:
        """Keeps the error for the ranks that are left, and adds to it what went wrong elsewhere."""
        said = "".join(traceback.format_exception_only(kind, value)).splitlines()
        # In one line, for TensorFlow logs it in each rank, among what the rank itself says.
        self._uncaught = " ".join(" ".join(error_of_user_code(said)).split())[:1000]
        failure = self.board.failure
        if isinstance(value, tf.errors.OpError) and failure is not None:
            value.add_note(str(failure))
        original(kind, value, trace)


def _read(setting: Callable[[], Any]) -> Any:
    """Returns a setting's value, or why it cannot be read: no error may end the watchdog."""
    try:
        return bool(setting())
    except Exception as error:
        return f"not to be read ({error})"
