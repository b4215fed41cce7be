"""One attempt of a run: the start of this host's ranks, and the wait until all have ended."""

import contextlib
import dataclasses
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfdp.base.atomic_files import temporary_folder
from tfdp.cluster.launch import output_lines
from tfdp.cluster.launch.hangs import Hangs
from tfdp.cluster.launch.mpiexec import Mpiexec, environment, words
from tfdp.cluster.launch.output import Outlet, RankStream, Sink, open_logs
from tfdp.cluster.launch.rank_process import MPI_LAUNCHER, RankProcess, expect, start
from tfdp.cluster.launch.rank_start import (
    RankGroup,
    ReservedPorts,
    TooManyRanksError,
    rank_environment,
)
from tfdp.cluster.launch.restarting import Attempt, Restarts
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.cluster.launch.supervision import STOPPING, Order, ReceivedSignals, Supervisor
from tfdp.cluster.launch.verdict import Failure, verdict
from tfdp.cluster.rank_status import (
    forget,
    ranks_without_strategy,
    steps_begun,
    told,
)

_IN_MEMORY = "/dev/shm"  # Linux' folder of files that are on no disk


@dataclasses.dataclass(frozen=True)
class Starter:
    """What every attempt of a run has in common.

    Attributes:
      options: The options of the run.
      command: The resolved command of each rank.
      environ: The launcher's environment.
      mpi: MPI's launcher, if it starts the ranks.
      received: The signals to the launcher.
      sink: Where the ranks' output goes.
      end: The monotonic time at which the limit ends the run.
    """

    options: RunOptions
    command: Sequence[str]
    environ: Mapping[str, str]
    mpi: Mpiexec | None
    received: ReceivedSignals
    sink: Sink
    end: float

    def say(self, message: str) -> None:
        """Writes what the launcher itself says, if it says something."""
        if message:
            line = f"tfdp run: {message}\n"
            self.sink.write(self.sink.stderr, [line.encode(errors="backslashreplace")])


def attempt(
    starter: Starter,
    group: RankGroup,
    secret: str,
    environ: Mapping[str, str],
    reserved: ReservedPorts,
    order: Callable[[], Order | None],
) -> Attempt:
    """Starts the ranks once, and waits for all.

    Args:
      starter: What every attempt has in common.
      group: The ranks.
      secret: The secret of the ranks.
      environ: What each rank gets beside the launcher's environment.
      reserved: The ports of this host's ranks, released when these start.
      order: Asked once a second what the ranks are to do; an order to stop waits until they can.

    Raises:
      TooManyRanksError: The system gives no more processes, files or threads.
      OSError: A folder cannot be written.
    """
    began, began_at = time.monotonic(), time.time()
    options, mpi, ranks = starter.options, starter.mpi, group.ranks
    environ = {**starter.environ, **environ}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        in_memory = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
        memory = stack.enter_context(temporary_folder(in_memory)) if mpi is not None else ""
        logs = {} if options.log_dir is None else open_logs(options.log_dir, ranks)
        for each in logs.values():
            stack.callback(each.close)
        devices = options.devices_per_process
        added = {
            rank: rank_environment(group, rank, devices, folder, secret=secret) for rank in ranks
        }
        reserved.release()
        started: list[RankProcess] = []  # the ranks, and MPI's launcher
        streams: dict[int, tuple[RankStream, RankStream]] = {}
        try:
            for process in _starting(starter.command, added, environ, mpi, folder, memory):
                started.append(process)
                stack.callback(process.close)
                streams[process.rank] = _shown(process, starter.sink, logs)
        except (OSError, RuntimeError) as error:
            # Their output ends before the pipes are closed, from which threads read.
            for process in started:
                process.send(signal.SIGKILL)
            for stream in itertools.chain(*streams.values()):
                stream.finish()
            raise _too_many(options, len(streams), error) from error

        def describe(process: RankProcess) -> Failure:
            assert process.returncode is not None
            status = told(folder, process.rank)
            said = (status.error or "").splitlines() or streams[process.rank][1].said()
            returncode, ended_at = process.returncode, process.ended_at
            return Failure(process.rank, returncode, ended_at, said, status.lost_rank)

        def absent(ended: Sequence[int]) -> list[int]:
            without = ranks_without_strategy(folder, ranks)
            waits = any(told(folder, rank).begun for rank in without if rank not in ended)
            return [rank for rank in ended if rank in without] if waits else []

        def ordered() -> Order | None:
            found = order()
            if found is Order.STOP and not all(told(folder, rank).can_stop for rank in ranks):
                return None
            return found

        of_ranks = started[: len(ranks)]
        restarts = Restarts(options.max_restarts, options.restart_window_seconds)
        came_again: set[int] = set()  # who may fail before it tells anything

        def is_apart(process: RankProcess) -> bool:
            rank = process.rank
            return mpi is None and (rank in came_again or told(folder, rank).apart)

        def start_again(process: RankProcess) -> RankProcess | None:
            rank = process.rank
            for stream in streams[rank]:
                stream.finish()
            said = f"rank {rank} of {group.world_size} ended with {describe(process).how}"
            if any(each.returncode == 0 for each in of_ranks):  # it would wait for them in vain
                starter.say(f"{said}; others have ended well by then: it does not start again.")
                return None
            if restarts.pause() is None:
                starter.say(f"{said}; the others train apart from it, and go on.")
                return None
            starter.say(
                f"{said}; the others go on, and it starts again (restarts left after that: "
                f"{restarts.left})."
            )
            forget(folder, rank)
            came_again.add(rank)
            again = start(rank, starter.command, {**environ, **added[rank]})
            stack.callback(again.close)
            streams[rank] = _shown(again, starter.sink, logs)
            of_ranks[of_ranks.index(process)] = again
            return again

        launcher = started[-1] if mpi is not None else None
        step_timeout = options.step_timeout_seconds
        hangs = Hangs(folder, ranks, group.world_size, step_timeout)
        outcome = Supervisor(
            of_ranks,
            starter.received,
            describe,
            absent,
            starter.end,
            ordered,
            hangs.found,
            is_apart,
            start_again,
            launcher,
        ).supervise()
        for stream in itertools.chain(*streams.values()):
            stream.finish()
        stopped = tuple(rank.rank for rank in of_ranks if rank.stopped)
        by_us = outcome.resized and not outcome.elsewhere
        asked = -STOPPING[0]
        missed = tuple(rank.rank for rank in of_ranks if by_us and rank.returncode == asked)
        outcome = dataclasses.replace(outcome, stopped=stopped, missed=missed)
        ended_well = any(rank.returncode == 0 for rank in of_ranks)
        failures = {
            rank.rank: describe(rank)
            for rank in of_ranks
            if rank.failed and not (ended_well and is_apart(rank))
        }
        if launcher is not None and outcome.launcher_first:
            failures[MPI_LAUNCHER] = describe(launcher)
        without = ranks_without_strategy(folder, [rank for rank in ranks if rank not in came_again])
        code, message = verdict(options, outcome, failures, without, group)
        return Attempt(
            code,
            message,
            outcome,
            time.monotonic() - began,
            group.world_size,
            tuple(rank for rank in outcome.failed if rank in without),
            steps_begun(folder, ranks),
            group.first,
            all(failures[rank].is_consequence for rank in outcome.failed),
            began_at,
            next(filter(None, (told(folder, rank).log_dir for rank in ranks)), None),
        )


def _starting(
    command: Sequence[str],
    added: Mapping[int, Mapping[str, str]],
    environ: Mapping[str, str],
    mpi: Mpiexec | None,
    folder: str,
    memory: str,
) -> Iterator[RankProcess]:
    """Yields each rank when it is started; under MPI when it is expected, and then the launcher."""
    for rank, own in added.items():
        if mpi is None:
            yield start(rank, command, {**environ, **own})
        else:
            yield expect(rank, folder, own)
    if mpi is not None:
        all_ranks = words(mpi, len(added), folder, command)
        yield start(MPI_LAUNCHER, all_ranks, environment(environ, memory))


def _shown(
    process: RankProcess, sink: Sink, logs: Mapping[int, Outlet]
) -> tuple[RankStream, RankStream]:
    """Begins to pass on a process' standard output and standard error."""
    label = "mpiexec" if process.rank == MPI_LAUNCHER else str(process.rank)
    log = logs.get(process.rank)
    in_output, in_errors = output_lines.hidden_ones(os.environ)
    output = RankStream(label, process.stdout, sink, sink.stdout, log, in_output)
    errors = RankStream(label, process.stderr, sink, sink.stderr, log, in_errors)
    output.start()
    try:
        errors.start()
    except RuntimeError:  # no thread can be had
        process.send(signal.SIGKILL)
        output.finish()
        raise
    return output, errors


def _too_many(options: RunOptions, started: int, error: Exception) -> TooManyRanksError:
    return TooManyRanksError(
        f"`-n` must not exceed the processes and open files that the system allows; received "
        f"{options.ranks}, and after {started} ranks of this host no other could be started: "
        f"{getattr(error, 'strerror', None) or error}; do `-n {max(1, started)}`, or raise the "
        "limits (`ulimit -n`, `ulimit -u`).",
        started,
    )
