"""A whole run of `tfdp run`, from the options to the exit code."""

import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Sequence

from tfdp.cluster.launch.attempt import Starter, attempt
from tfdp.cluster.launch.mpiexec import Mpiexec, fitting_mpiexec, one_line
from tfdp.cluster.launch.nodes.messages import How, how
from tfdp.cluster.launch.nodes.node import Node, node_of
from tfdp.cluster.launch.output import Sink
from tfdp.cluster.launch.places import Places, Say, gpu_shares, look_up, wait_for_places
from tfdp.cluster.launch.rank_start import (
    RankGroup,
    ReservedPorts,
    TooManyRanksError,
    rank_environment,
    resolve,
)
from tfdp.cluster.launch.restarting import Attempt, SingleNode, keep, same_step, summary
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.cluster.launch.supervision import Order, ReceivedSignals
from tfdp.cluster.launch.verdict import EndedError
from tfdp.cluster.mpi import without_rank


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
      ClusterError: MPI is to start the ranks, and is not installed as that needs; or the launchers
        of several hosts have not the same secret.
      OSError: A folder cannot be written, or the system gives no process or port.
    """
    command = resolve(options.command)
    # A rank that is started here has no place among those of an `mpirun` around `tfdp run`.
    environ = without_rank(os.environ)
    mpi = fitting_mpiexec(command, environ) if options.engine == "mpi" else None
    if options.dry_run:
        gpus = gpu_shares(options, environ)
        with ReservedPorts(len(gpus)) as reserved:
            _print_plan(options, command, RankGroup.of_this_host(reserved.ports, gpus), mpi)
        return 0
    end = time.monotonic() + (options.timeout_seconds or float("inf"))
    with ReceivedSignals() as received:
        sink = Sink(sys.stdout.buffer, sys.stderr.buffer, received.broken)

        attempts: list[Attempt] = []
        starter = Starter(options, command, environ, mpi, received, sink, end)
        say = starter.say
        try:
            with (
                Places(options, environ, say, lambda: look_up(starter)) as places,
                node_of(starter, say) as node,
            ):
                code = _attempts(starter, places, node, attempts, say)
        except EndedError as error:
            code = error.code
            say(str(error))
        say(summary(attempts))
        return code


def _attempts(
    starter: Starter, places: Places, node: SingleNode | Node, attempts: list[Attempt], say: Say
) -> int:
    """Starts the ranks until no other attempt is to follow, and keeps each attempt in the list.

    Returns:
      The exit code.

    Raises:
      EndedError: The run ends between two attempts.
    """
    while True:
        gpus = wait_for_places(starter, places, say)
        try:
            made = _attempt(starter, places, node, gpus, len(attempts))
        except TooManyRanksError as error:
            if not places.can_do_with(error.started):
                raise
            text = f"{error} {places.could_not_start(error.started)}"
            say(text)
            decision = node.did_not_start(text)
        else:
            attempts.append(made)
            say(keep(made))
            if made.failed or made.outcome.elsewhere:
                say(made.message)
            say(same_step(attempts))
            decision = node.ended(made)
            if decision.goes_on:
                say(places.learn(made))
        say(decision.message)
        if not decision.goes_on:
            return decision.code
        look_up(starter, decision.pause)


def _attempt(
    starter: Starter,
    places: Places,
    node: SingleNode | Node,
    gpus: Sequence[str | None],
    attempts: int,
) -> Attempt:
    """Starts so many ranks on this host, with those of the others, and waits for them."""

    def order() -> Order | None:
        wants = places.wants_another_number(len(gpus))
        return node.order() or (Order.STOP if wants else None)

    with ReservedPorts(len(gpus), node.interface) as reserved:
        made = attempt(starter, *node.start(reserved.ports, gpus, attempts), reserved, order)
    if node.reason and how(made) is How.TOLD:
        reason = f"this node's ranks were ended: {node.reason}."
        made = dataclasses.replace(made, message=reason)
    return made


def _print_plan(
    options: RunOptions, command: Sequence[str], group: RankGroup, mpi: Mpiexec | None
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
