"""A whole run of `tfdp run`, from the options to the exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence

from tfdp.cluster import secret
from tfdp.cluster.run_status import ranks_that_wait, ranks_without_strategy
from tfdp.files import temporary_folder
from tfdp.launch.command import resolve
from tfdp.launch.output import RankStream, Sink, open_logs
from tfdp.launch.run_options import RunOptions
from tfdp.launch.starting import RankProcess, ReservedPorts, rank_environment
from tfdp.launch.supervision import ReceivedSignals, Supervisor
from tfdp.launch.verdict import Failure, verdict


def run(options: RunOptions) -> int:
    """Starts the ranks, waits for all, and says on standard error what went wrong.

    Returns:
      0 if every rank ended with 0. Else the exit code of the rank that failed first; 128 + the
      signal if a signal killed that rank or the launcher; 124 where the limit ended the run; 1 if a
      rank ended with 0 and made no strategy: it trained alone, or others waited for it.

    Raises:
      CommandError: There is no such command; nothing was started.
      OSError: A folder cannot be written, or the system gives no process or port.
    """
    command = resolve(options.command)
    with ReservedPorts(options.processes) as reserved:
        if options.dry_run:
            _print_plan(options, command, reserved.ports)
            return 0
        return _run(options, command, reserved)


def _print_plan(options: RunOptions, command: Sequence[str], ports: Sequence[int]) -> None:
    """Prints for each rank the line that a shell would run."""
    print("# Each rank also gets TFDP_RUN_STATUS, a temporary folder made at the start,")
    print("# and TFDP_SECRET, by which they know each other.")
    for rank in range(options.processes):
        added = rank_environment(ports, rank, options.devices_per_process)
        words = ["env", *(f"{name}={value}" for name, value in sorted(added.items())), *command]
        print(f"# rank {rank}\n{shlex.join(words)}")


def _run(options: RunOptions, command: Sequence[str], reserved: ReservedPorts) -> int:
    ranks: list[RankProcess] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        received = stack.enter_context(ReceivedSignals())
        sink = Sink(sys.stdout.buffer, sys.stderr.buffer, received.broken)
        logs = [] if options.log_dir is None else open_logs(options.log_dir, options.processes)
        for each in logs:
            stack.callback(each.close)
        shared = secret.made()
        added = [
            rank_environment(
                reserved.ports, rank, options.devices_per_process, folder, secret=shared
            )
            for rank in range(options.processes)
        ]
        reserved.release()
        streams: list[RankStream] = []  # each rank's standard output and standard error
        for rank in range(options.processes):
            log = logs[rank] if logs else None
            try:
                ranks.append(RankProcess(rank, command, {**os.environ, **added[rank]}))
                stack.callback(ranks[-1].close)
                for source, target in (
                    (ranks[-1].stdout, sink.stdout),
                    (ranks[-1].stderr, sink.stderr),
                ):
                    streams.append(RankStream(rank, source, sink, target, log))
                    streams[-1].start()
            except (OSError, RuntimeError) as error:  # no more processes, files or threads
                raise _too_many(options, rank, error) from error
        errors = streams[1::2]

        def describe(rank: RankProcess) -> Failure:
            assert rank.returncode is not None
            return Failure(rank.rank, rank.returncode, rank.ended_at, errors[rank.rank].said())

        def absent(ended: Sequence[int]) -> list[int]:
            without = ranks_without_strategy(folder, options.processes)
            waits = set(ranks_that_wait(folder, options.processes)) - set(ended)
            return [rank for rank in ended if rank in without] if waits else []

        supervisor = Supervisor(ranks, received, describe, absent, options.timeout_seconds)
        outcome = supervisor.supervise()
        for stream in streams:
            stream.finish()
        failures = {rank.rank: describe(rank) for rank in ranks if rank.failed}
        configs = [each["TF_CONFIG"] for each in added]
        code, message = verdict(options, outcome, failures, folder, configs)
        if message:
            sink.write(sink.stderr, [f"tfdp run: {message}\n".encode(errors="backslashreplace")])
    return code


def _too_many(options: RunOptions, rank: int, error: Exception) -> OSError:
    return OSError(
        f"`-n` must not exceed the processes and open files that the system allows; received "
        f"{options.processes}, and rank {rank} could not be started: "
        f"{getattr(error, 'strerror', None) or error}; do `-n {max(1, rank)}`, or raise the limits "
        "(`ulimit -n`, `ulimit -u`)."
    )
