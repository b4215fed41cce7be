"""A whole run of `tfdp run`, from the options to the exit code."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence

from tfdp.cluster import secret
from tfdp.cluster.mpi import without_rank
from tfdp.cluster.mpi_installation import Mpiexec
from tfdp.launch.attempt import Starter, TooManyRanksError, attempt
from tfdp.launch.command import resolve
from tfdp.launch.gpu_shares import gpu_shares
from tfdp.launch.mpiexec import fitting_mpiexec, one_line
from tfdp.launch.output import Sink
from tfdp.launch.places import Places
from tfdp.launch.restarting import (
    RESTART_COUNT,
    Attempt,
    Restarts,
    announcement,
    same_step,
    summary,
)
from tfdp.launch.run_options import JOIN_SECONDS, RunOptions
from tfdp.launch.starting import Group, ReservedPorts, rank_environment
from tfdp.launch.supervision import Order, ReceivedSignals
from tfdp.launch.verdict import TIMED_OUT, signal_name

# The pause between two looks for places, while there are too few.
_LOOK_SECONDS = 0.5


class _EndedError(Exception):
    """The end of a run between two attempts."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def run(options: RunOptions) -> int:
    """Starts the ranks, waits for all, and says on standard error what went wrong.

    After a failure all ranks start again, if the options leave restarts; with `-n MIN:MAX` as many
    as there are places for then.

    Returns:
      0 if every rank ended with 0, in the last attempt. Else the exit code of the rank that failed
      first; 75 if a signal stopped the training after a checkpoint; 128 + the signal if a signal
      killed that rank or the launcher; 124 where the limit ended the run; 1 if a rank ended with 0
      and made no strategy: it trained alone, or others waited for it; 1 where fewer than MIN ranks
      could be had.

    Raises:
      CommandError: There is no such command; nothing was started.
      TooFewGPUsError: There are fewer GPUs than the ranks need.
      DiscoveryError: The command of `--discover` says no number.
      ClusterError: MPI is to start the ranks, and is not installed as that needs.
      OSError: A folder cannot be written, or the system gives no process or port.
    """
    command = resolve(options.command)
    # A rank that is started here has no place among those of an `mpirun` around `tfdp run`.
    environ = without_rank(os.environ)
    mpi = fitting_mpiexec(command, environ) if options.engine == "mpi" else None
    if options.dry_run:
        gpus = gpu_shares(options, environ)
        with ReservedPorts(len(gpus)) as reserved:
            _print_plan(options, command, Group.of_this_host(reserved.ports, gpus), mpi)
        return 0
    end = time.monotonic() + (options.timeout_seconds or float("inf"))
    with ReceivedSignals() as received:
        sink = Sink(sys.stdout.buffer, sys.stderr.buffer, received.broken)

        def say(message: str) -> None:
            if message:
                line = f"tfdp run: {message}\n"
                sink.write(sink.stderr, [line.encode(errors="backslashreplace")])

        attempts: list[Attempt] = []
        starter = Starter(options, command, environ, mpi, received, sink, end)
        try:
            with Places(options, environ, say) as places:
                _attempts(starter, places, attempts, say)
            code = attempts[-1].code
            say(attempts[-1].message)
            say(same_step(attempts))
        except _EndedError as error:
            code = error.code
            say(str(error))
        say(summary(attempts))
        return code


def _attempts(
    starter: Starter, places: Places, attempts: list[Attempt], say: Callable[[str], None]
) -> None:
    """Starts the ranks until no other attempt is to follow, and keeps each attempt in the list.

    Raises:
      _EndedError: The run ends between two attempts.
    """
    options = starter.options
    restarts = Restarts(options.max_restarts, options.restart_window_seconds)
    while True:
        gpus = _wait_for_places(starter, places, say)
        try:
            attempts.append(_attempt(starter, places, gpus, len(attempts)))
        except TooManyRanksError as error:
            if not options.is_elastic or error.rank < options.ranks.least:
                raise
            say(f"{error} {places.could_not_start(error.rank)}")
            continue
        last = attempts[-1]
        if last.resized:
            say(last.message)
            continue
        pause = restarts.pause() if last.failed else None
        if pause is None or time.monotonic() + pause >= starter.end:
            return
        say(last.message)
        say(same_step(attempts))
        say(places.learn(last))
        say(announcement(pause, restarts.left))
        stopped_by = starter.received.within(pause)
        if stopped_by is not None:
            raise _stopped(stopped_by)


def _attempt(starter: Starter, places: Places, gpus: Sequence[str | None], number: int) -> Attempt:
    """Starts so many ranks on this host, and waits for them."""

    def order() -> Order | None:
        return Order.STOP if places.wants_another_number(len(gpus)) else None

    with ReservedPorts(len(gpus)) as reserved:
        group = Group.of_this_host(reserved.ports, gpus)
        added = {RESTART_COUNT: str(number)}
        changes = starter.options.discover is not None
        return attempt(starter, group, reserved, secret.made(), added, order if changes else None)


def _wait_for_places(
    starter: Starter, places: Places, say: Callable[[str], None]
) -> Sequence[str | None]:
    """Returns the GPUs of each rank that may run now, as soon as there are enough ranks."""
    least = starter.options.ranks.least
    seconds = starter.options.join_timeout_seconds or JOIN_SECONDS
    deadline = time.monotonic() + seconds
    waits = False
    while len(found := places.now()) < least:
        if not waits:
            waits = True
            say(
                f"at least {least} ranks must run, and there are places for {len(found)}; waits "
                f"{seconds:g} s at most for others."
            )
        if time.monotonic() >= starter.end:
            raise _EndedError(TIMED_OUT, "`timeout` ended the run, which waited for ranks.")
        if time.monotonic() >= deadline:
            raise _EndedError(
                1,
                f"`-n MIN:MAX` must have places for MIN ranks within `join-timeout`; received -n "
                f"{starter.options.ranks}, and after {seconds:g} s places for {len(found)}; lower "
                "MIN, or start the same command again when there are more.",
            )
        stopped_by = starter.received.within(_LOOK_SECONDS)
        if stopped_by is not None:
            raise _stopped(stopped_by)
    return found


def _stopped(number: int) -> _EndedError:
    return _EndedError(128 + number, f"{signal_name(number)} came, and no rank was started again.")


def _print_plan(
    options: RunOptions, command: Sequence[str], group: Group, mpi: Mpiexec | None
) -> None:
    """Prints for each rank the line that a shell would run; under MPI one line for all."""
    print("# Each rank also gets TFDP_RUN_STATUS, a temporary folder made at the start,")
    print("# and TFDP_SECRET, by which they know each other, and TFDP_RESTART_COUNT=0.")
    lines = []
    for rank in group.ranks:
        added = rank_environment(group, rank, options.devices_per_process)
        lines.append(["env", *(f"{name}={value}" for name, value in sorted(added.items()))])
        lines[-1] += command
    if mpi is not None:
        print(f"# all ranks\n{shlex.join(one_line(mpi, lines))}")
        return
    for rank, line in enumerate(lines, group.first):
        print(f"# rank {rank}\n{shlex.join(line)}")
