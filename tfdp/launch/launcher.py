"""A whole run of `tfdp run`, from the options to the exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from tfdp.cluster import secret
from tfdp.cluster.mpi import without_rank
from tfdp.cluster.mpi_installation import Mpiexec
from tfdp.cluster.run_status import last_step, ranks_that_wait, ranks_without_strategy
from tfdp.files import temporary_folder
from tfdp.launch.command import resolve
from tfdp.launch.gpu_shares import gpu_shares
from tfdp.launch.mpiexec import environment, fitting_mpiexec, one_line, words
from tfdp.launch.output import Outlet, RankStream, Sink, open_logs
from tfdp.launch.rank_process import MPI_LAUNCHER, RankProcess, expect, start
from tfdp.launch.restarting import (
    RESTART_COUNT,
    Attempt,
    Restarts,
    announcement,
    same_step,
    summary,
)
from tfdp.launch.run_options import RunOptions
from tfdp.launch.starting import ReservedPorts, rank_environment
from tfdp.launch.supervision import ReceivedSignals, Supervisor
from tfdp.launch.verdict import Failure, signal_name, verdict

_IN_MEMORY = "/dev/shm"  # Linux' folder of files that are on no disk


def run(options: RunOptions) -> int:
    """Starts the ranks, waits for all, and says on standard error what went wrong.

    After a failure all ranks start again, if the options leave restarts.

    Returns:
      0 if every rank ended with 0, in the last attempt. Else the exit code of the rank that failed
      first; 75 if a signal stopped the training after a checkpoint; 128 + the signal if a signal
      killed that rank or the launcher; 124 where the limit ended the run; 1 if a rank ended with 0
      and made no strategy: it trained alone, or others waited for it.

    Raises:
      CommandError: There is no such command; nothing was started.
      TooFewGPUsError: There are fewer GPUs than the ranks need.
      ClusterError: MPI is to start the ranks, and is not installed as that needs.
      OSError: A folder cannot be written, or the system gives no process or port.
    """
    command = resolve(options.command)
    # A rank that is started here has no place among those of an `mpirun` around `tfdp run`.
    environ = without_rank(os.environ)
    mpi = fitting_mpiexec(command, environ) if options.engine == "mpi" else None
    gpus = gpu_shares(options, environ)
    if options.dry_run:
        with ReservedPorts(options.processes) as reserved:
            _print_plan(options, command, reserved.ports, mpi, gpus)
        return 0
    restarts = Restarts(options.max_restarts, options.restart_window_seconds)
    attempts: list[Attempt] = []
    end = time.monotonic() + (options.timeout_seconds or float("inf"))
    with ReceivedSignals() as received:
        sink = Sink(sys.stdout.buffer, sys.stderr.buffer, received.broken)
        while True:
            own = {**environ, RESTART_COUNT: str(len(attempts))}
            with ReservedPorts(options.processes) as reserved:
                attempts.append(
                    _attempt(options, command, reserved, own, mpi, gpus, received, sink, end)
                )
            pause = restarts.pause() if attempts[-1].failed else None
            if pause is None or time.monotonic() + pause >= end:
                break
            _say(sink, attempts[-1].message)
            _say(sink, same_step(attempts))
            _say(sink, announcement(pause, restarts.left))
            stopped_by = received.within(pause)
            if stopped_by is not None:
                _say(sink, f"{signal_name(stopped_by)} came, and no rank was started again.")
                return 128 + stopped_by
    _say(sink, attempts[-1].message)
    _say(sink, same_step(attempts))
    _say(sink, summary(attempts))
    return attempts[-1].code


def _say(sink: Sink, message: str) -> None:
    if message:
        sink.write(sink.stderr, [f"tfdp run: {message}\n".encode(errors="backslashreplace")])


def _print_plan(
    options: RunOptions,
    command: Sequence[str],
    ports: Sequence[int],
    mpi: Mpiexec | None,
    gpus: Sequence[str | None],
) -> None:
    """Prints for each rank the line that a shell would run; under MPI one line for all."""
    print("# Each rank also gets TFDP_RUN_STATUS, a temporary folder made at the start,")
    print("# and TFDP_SECRET, by which they know each other, and TFDP_RESTART_COUNT=0.")
    lines = []
    for rank in range(options.processes):
        added = rank_environment(ports, rank, options.devices_per_process, gpus=gpus[rank])
        lines.append(["env", *(f"{name}={value}" for name, value in sorted(added.items()))])
        lines[-1] += command
    if mpi is not None:
        print(f"# all ranks\n{shlex.join(one_line(mpi, lines))}")
        return
    for rank, line in enumerate(lines):
        print(f"# rank {rank}\n{shlex.join(line)}")


def _attempt(
    options: RunOptions,
    command: Sequence[str],
    reserved: ReservedPorts,
    environ: Mapping[str, str],
    mpi: Mpiexec | None,
    gpus: Sequence[str | None],
    received: ReceivedSignals,
    sink: Sink,
    end: float,
) -> Attempt:
    """Starts the ranks once, and waits for all."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        in_memory = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
        memory = stack.enter_context(temporary_folder(in_memory)) if mpi is not None else ""
        logs = [] if options.log_dir is None else open_logs(options.log_dir, options.processes)
        for each in logs:
            stack.callback(each.close)
        shared = secret.made()
        added = [
            rank_environment(
                reserved.ports, rank, options.devices_per_process, folder, secret=shared, gpus=own
            )
            for rank, own in enumerate(gpus)
        ]
        reserved.release()
        started: list[RankProcess] = []  # the ranks, and MPI's launcher
        streams: dict[int, tuple[RankStream, RankStream]] = {}
        try:
            for process in _starting(command, added, environ, mpi, folder, memory):
                started.append(process)
                stack.callback(process.close)
                streams[process.rank] = _shown(process, sink, logs)
        except (OSError, RuntimeError) as error:  # no more processes, files or threads
            raise _too_many(options, len(started), error) from error

        def describe(process: RankProcess) -> Failure:
            assert process.returncode is not None
            said = streams[process.rank][1].said()
            return Failure(process.rank, process.returncode, process.ended_at, said)

        def absent(ended: Sequence[int]) -> list[int]:
            without = ranks_without_strategy(folder, options.processes)
            waits = set(ranks_that_wait(folder, options.processes)) - set(ended)
            return [rank for rank in ended if rank in without] if waits else []

        ranks = started[: options.processes]
        launcher = started[-1] if mpi is not None else None
        outcome = Supervisor(ranks, received, describe, absent, end, launcher).supervise()
        for stream in itertools.chain(*streams.values()):
            stream.finish()
        stopped = tuple(rank.rank for rank in ranks if rank.stopped)
        outcome = dataclasses.replace(outcome, stopped=stopped)
        failures = {rank.rank: describe(rank) for rank in ranks if rank.failed}
        if launcher is not None and outcome.launcher_first:
            failures[MPI_LAUNCHER] = describe(launcher)
        configs = [each["TF_CONFIG"] for each in added]
        code, message = verdict(options, outcome, failures, folder, configs)
        step = last_step(folder, options.processes)
        return Attempt(code, message, outcome, time.monotonic() - began, step)


def _starting(
    command: Sequence[str],
    added: Sequence[Mapping[str, str]],
    environ: Mapping[str, str],
    mpi: Mpiexec | None,
    folder: str,
    memory: str,
) -> Iterator[RankProcess]:
    """Yields each rank when it is started; under MPI when it is expected, and then the launcher."""
    for rank, own in enumerate(added):
        if mpi is None:
            yield start(rank, command, {**environ, **own})
        else:
            yield expect(rank, folder, own)
    if mpi is not None:
        all_ranks = words(mpi, len(added), folder, command)
        yield start(MPI_LAUNCHER, all_ranks, environment(environ, memory))


def _shown(
    process: RankProcess, sink: Sink, logs: Sequence[Outlet]
) -> tuple[RankStream, RankStream]:
    """Begins to pass on a process' standard output and standard error."""
    of_rank = process.rank != MPI_LAUNCHER
    label = str(process.rank) if of_rank else "mpiexec"
    log = logs[process.rank] if logs and of_rank else None
    output = RankStream(label, process.stdout, sink, sink.stdout, log)
    errors = RankStream(label, process.stderr, sink, sink.stderr, log)
    output.start()
    errors.start()
    return output, errors


def _too_many(options: RunOptions, rank: int, error: Exception) -> OSError:
    return OSError(
        f"`-n` must not exceed the processes and open files that the system allows; received "
        f"{options.processes}, and rank {rank} could not be started: "
        f"{getattr(error, 'strerror', None) or error}; do `-n {max(1, rank)}`, or raise the limits "
        "(`ulimit -n`, `ulimit -u`)."
    )
