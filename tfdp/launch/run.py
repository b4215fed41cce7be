"""One run of `tfdp run`, from the choices to the exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Sequence

from tfdp.cluster import secret
from tfdp.launch.command import resolve
from tfdp.launch.environment import rank_environment
from tfdp.launch.failures import Failure
from tfdp.launch.logs import log_path, prepare_log_folder
from tfdp.launch.options import RunOptions
from tfdp.launch.output import RankStream, Sink
from tfdp.launch.ports import ReservedPorts
from tfdp.launch.process import RankProcess
from tfdp.launch.signals import ReceivedSignals
from tfdp.launch.supervision import Outcome, Supervisor
from tfdp.launch.verdict import verdict


def run(options: RunOptions) -> int:
    """Starts the ranks, waits for all, and says on standard error what went wrong.

    Returns:
        0 if every rank ended with 0. Else the exit code of the rank that failed first, 128 + the
        signal if one killed it or the launcher; 124 where the limit ended the run; 1 if every rank
        ended with 0 but some made no strategy.

    Raises:
        CommandError: there is no such command; nothing was started.
        OSError: a folder cannot be written, or the system gives no process or port.
    """
    command = resolve(options.command)
    with ReservedPorts(options.processes) as reserved:
        if options.dry_run:
            _print_plan(options, command, reserved.ports)
            return 0
        return _run(options, command, reserved)


def _print_plan(options: RunOptions, command: Sequence[str], ports: Sequence[int]) -> None:
    """Prints a line for each rank that a shell would run."""
    print("# Each rank also gets TFDP_RUN_STATUS, a temporary folder made at the start,")
    print("# and TFDP_SECRET, by which they know each other.")
    for rank in range(options.processes):
        added = rank_environment(ports, rank, options.devices_per_process)
        words = ["env", *(f"{name}={value}" for name, value in sorted(added.items())), *command]
        print(f"# rank {rank}\n{shlex.join(words)}")


def _run(options: RunOptions, command: Sequence[str], reserved: ReservedPorts) -> int:
    ranks: list[RankProcess] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tfdp-run-"))
        received = stack.enter_context(ReceivedSignals())
        sink = Sink(sys.stdout.buffer, sys.stderr.buffer, received.broken)
        if options.log_dir is not None:
            prepare_log_folder(options.log_dir)
        shared = secret.made()
        added = [
            rank_environment(
                reserved.ports, rank, options.devices_per_process, folder, secret=shared
            )
            for rank in range(options.processes)
        ]
        reserved.release()
        for rank in range(options.processes):
            ranks.append(RankProcess(rank, command, {**os.environ, **added[rank]}))
            stack.callback(ranks[-1].close)
        output = {rank.rank: _Output(rank, sink, options, stack) for rank in ranks}

        def describe(rank: RankProcess) -> Failure:
            assert rank.returncode is not None
            return Failure(rank.rank, rank.returncode, rank.ended_at, output[rank.rank].said())

        outcome: Outcome = Supervisor(
            ranks, received, describe, options.timeout_seconds
        ).supervise()
        for each in output.values():
            each.finish()
        failures = {rank.rank: describe(rank) for rank in ranks if rank.failed}
        configs = [each["TF_CONFIG"] for each in added]
        code, message = verdict(options, outcome, failures, folder, configs)
        if message:
            sink.write(sink.stderr, [f"tfdp run: {message}\n".encode(errors="backslashreplace")])
    return code


class _Output:
    """Both streams of one rank, and its log."""

    def __init__(
        self, rank: RankProcess, sink: Sink, options: RunOptions, stack: contextlib.ExitStack
    ) -> None:
        log = None
        if options.log_dir is not None:
            log = stack.enter_context(log_path(options.log_dir, rank.rank).open("wb"))
        lock = threading.Lock()
        self._streams = [
            RankStream(rank.rank, source, sink, target, log, lock)
            for source, target in ((rank.stdout, sink.stdout), (rank.stderr, sink.stderr))
        ]
        for stream in self._streams:
            stream.start()

    def said(self) -> list[str]:
        """The last lines on standard error, as far as it has been read."""
        lines = self._streams[1].last_lines.copy()
        return [line.decode(errors="backslashreplace") for line in lines]

    def finish(self) -> None:
        for stream in self._streams:
            stream.finish()
