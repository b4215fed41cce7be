"""The attempts of a run on several hosts, as one of the launchers makes them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from tfdp.cluster import secret as secrets
from tfdp.cluster.admission import PEERS
from tfdp.cluster.launch.attempt import Starter, attempt
from tfdp.cluster.launch.attempt_log import keep
from tfdp.cluster.launch.nodes import messages
from tfdp.cluster.launch.nodes.node import LOST, Heard, Node
from tfdp.cluster.launch.nodes.node_rendezvous import serve
from tfdp.cluster.launch.places import Places, look_up, wait_for_places
from tfdp.cluster.launch.rank_start import LOOPBACK, RankGroup, ReservedPorts, TooManyRanksError
from tfdp.cluster.launch.restarting import RESTART_COUNT, Attempt, same_step
from tfdp.cluster.launch.run_options import JOIN_SECONDS
from tfdp.cluster.launch.supervision import Order
from tfdp.cluster.launch.verdict import EndedError
from tfdp.cluster.secret import HOW_TO_GIVE_ONE
from tfdp.cluster.spec import host_of, is_loopback
from tfdp.errors import ClusterError

Say = Callable[[str], None]

_PAUSE_SECONDS = 0.5  # between two attempts to join


class _LeftError(EndedError):
    """The end of this node alone, by a signal while its ranks ran."""


def attempts_on_nodes(starter: Starter, places: Places, attempts: list[Attempt], say: Say) -> None:
    """Makes attempts with the other launchers, and keeps each in the list.

    Raises:
      EndedError: The run has ended, with this code and these words.
      ClusterError: There is no secret, or the others have another.
    """
    options = starter.options
    secret = secrets.in_environment(starter.environ)
    if secret is None:
        raise ClusterError(
            f"`--nodes` must come with a secret by which the launchers know each other; received "
            f"none. {HOW_TO_GIVE_ONE}"
        )
    served = serve(options, secret, say)
    node = Node(options, secret, served is not None)
    try:
        _attempts(starter, places, node, secret, attempts, say)
    except _LeftError:  # the rendezvous has heard, and decides when the others have ended
        raise
    except EndedError as error:
        if served is not None:
            served.finish(error.code, f"the node of the rendezvous has ended: {error}")
        raise
    except Exception as error:
        if served is not None:
            served.finish(1, f"the node of the rendezvous has failed: {error}")
        raise
    finally:
        node.close()
        if served is not None:
            served.close()


def _attempts(
    starter: Starter,
    places: Places,
    node: Node,
    secret: str,
    attempts: list[Attempt],
    say: Say,
) -> None:
    """Makes attempts until the run ends, which raises EndedError."""
    while True:
        started = _attempt(starter, places, node, secret, attempts, say)
        heard = _hear(starter, node, {messages.AGAIN, messages.FINISHED})
        if heard.kind == LOST:
            say("the rendezvous was lost; looks for it again.")
            look_up(starter)
            continue
        message = str(heard.said["message"])
        if heard.kind == messages.FINISHED:
            raise EndedError(int(heard.said["code"]), message)
        say(message)
        say(same_step(attempts))
        if started:
            say(places.learn(attempts[-1], attempts[-1].first_rank))
        look_up(starter, float(heard.said["pause"]))


def _attempt(
    starter: Starter,
    places: Places,
    node: Node,
    secret: str,
    attempts: list[Attempt],
    say: Say,
) -> bool:
    """Joins the others, starts this host's ranks with theirs, and says how they ended.

    Returns:
      Whether the ranks were started: the system may give fewer than there are places for.
    """
    options = starter.options
    assert options.rendezvous is not None
    gpus = wait_for_places(starter, places, say)
    on_loopback = is_loopback(host_of(options.rendezvous))
    with contextlib.ExitStack() as stack:
        try:
            reserved = stack.enter_context(
                ReservedPorts(len(gpus), LOOPBACK if on_loopback else "")
            )
        except TooManyRanksError as error:
            if not places.can_do_with(error.started):
                raise
            say(f"{error} {places.could_not_start(error.started)}")
            look_up(starter)
            return _attempt(starter, places, node, secret, attempts, say)
        said = _start(starter, node, reserved.ports, len(attempts))
        number, first = int(said["attempt"]), int(said["first"])
        group = RankGroup(tuple(said["addresses"]), first, tuple(gpus))
        added = {RESTART_COUNT: str(number)}
        if said["peers"] and PEERS not in starter.environ:
            added[PEERS] = " ".join(said["peers"])

        def order() -> Order | None:
            wants = options.discover is not None and places.wants_another_number(len(gpus))
            return node.order() or (Order.STOP if wants else None)

        try:
            made = attempt(starter, group, reserved, secret, added, order)
        except TooManyRanksError as error:
            if not places.can_do_with(error.started):
                raise
            text = f"{error} {places.could_not_start(error.started)}"
            say(text)
            node.did_not_start(text)
            return False
    if messages.how(made) is messages.How.TOLD:
        made = dataclasses.replace(made, message=f"this node's ranks were ended: {node.reason}.")
    attempts.append(made)
    say(keep(made))
    if made.failed or made.outcome.elsewhere:
        say(made.message)
    how = messages.how(made)
    node.ended(made, how)
    if how is messages.How.LEFT:
        raise _LeftError(made.code, made.message)
    return True


def _start(starter: Starter, node: Node, ports: list[int], attempts: int) -> dict[str, Any]:
    """Joins the rendezvous, and returns what it says of the start."""
    options = starter.options
    seconds = options.join_timeout_seconds or JOIN_SECONDS
    deadline = time.monotonic() + seconds
    while True:
        try:
            node.join(attempts)
        except OSError as error:
            why = str(error) or "it is silent"
        else:
            node.ready(ports)
            joined = time.monotonic()
            heard = _hear(starter, node, {messages.START, messages.FINISHED, messages.REFUSED})
            if heard.kind == messages.START:
                return heard.said
            if heard.kind != LOST:
                text = heard.said.get("message") or heard.said.get("reason") or ""
                raise EndedError(int(heard.said.get("code", 2)), str(text))
            why = "it was lost again"
            deadline += time.monotonic() - joined  # a node that is taken in may wait for long
        if time.monotonic() >= deadline:
            raise EndedError(
                1,
                f"`rendezvous` must be the address of a host where this command runs, too; "
                f"received {options.rendezvous}, and in {seconds:g} s nobody took this node "
                f"in: {why}; start the command there, or open its port.",
            )
        look_up(starter, _PAUSE_SECONDS)


def _hear(starter: Starter, node: Node, kinds: set[str]) -> Heard:
    """Waits until the rendezvous says one of these, or is lost: at the latest when it is silent."""
    while True:
        heard = node.hear(0.05)
        if heard is not None and heard.kind in {*kinds, LOST}:
            return heard
        look_up(starter)
