"""Whoever connects, a start is as without them; what is malformed never leaves a rank waiting."""

import asyncio
import contextlib
import socket
import struct

import malformed
import meeting
import pytest
import tiers

from tfdp.cluster import secret, wire
from tfdp.cluster.connections import Connections
from tfdp.cluster.control_channel import ControlChannel
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.spec import port_of
from tfdp.errors import ClusterError, RankLostError


def met_beside(*sent, shared=None, seconds=60.0):
    """What the meeting of two ranks ends with while one stranger after the other sends bytes.

    The strangers' connections stay open meanwhile.
    """
    first, second = meeting.clusters(2)
    address = ("127.0.0.1", port_of(first.coordinator))

    def strangers_then_second():
        with contextlib.ExitStack() as stack:
            stack.enter_context(meeting.connection(address))
            for data in sent:
                with contextlib.suppress(ConnectionError):  # sent away before it was done
                    stranger = stack.enter_context(socket.create_connection(address, 1.0))
                    stranger.sendall(data)
            return meet(second, {}, meeting.no_difference, seconds, shared)

    return meeting.on_all(
        lambda: meet(first, {}, meeting.no_difference, seconds, shared), strangers_then_second
    )


def assert_met(ends):
    assert [len(getattr(end, "introductions", [end])) for end in ends] == [2, 2], ends


@pytest.mark.parametrize("shared", [None, secret.made()], ids=["open", "with a secret"])
def test_silent_connections_delay_nobody(shared):
    assert_met(met_beside(*[b""] * 6, shared=shared))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">IQ", 200_000, 0) + b"[" * 200_000,
        struct.pack(">IQ", 60_000, 0) + b"[" * 60_000,
        *(
            wire.frame({"nonce": "", "introduction": {"rank": 1, "world_size": 2, **more}})
            for more in ({"address": "nowhere"}, {"address": 1}, {})
        ),
    ],
    ids=["too long", "nested", "no address", "number", "missing"],
)
def test_what_a_stranger_sends_harms_nobody(data):
    assert_met(met_beside(data))


@pytest.mark.parametrize("seed", tiers.first_of(0, 1))
def test_200_malformed_inputs_to_the_port_leave_a_start_with_a_secret_as_it_is(seed):
    inputs = list(malformed.inputs(seed))
    assert len(set(inputs)) > 100
    assert_met(met_beside(*inputs, shared=secret.made(), seconds=30.0))


def test_200_malformed_inputs_to_the_port_leave_a_start_or_end_it_with_a_word():
    ends = met_beside(*malformed.inputs(2), seconds=30.0)
    if any(isinstance(end, Exception) for end in ends):
        assert all(isinstance(end, ClusterError) for end in ends), ends


def test_200_malformed_inputs_from_a_rank_end_every_wait_with_a_word():
    connections = Connections()
    for data in malformed.inputs(3):
        ours, theirs = socket.socketpair()
        with theirs:
            connections.streams = {1: connections.run(asyncio.open_connection(sock=ours))}
            board = ControlChannel(0, 2, connections, timeout_seconds=60.0)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(RankLostError, match="rank 1: "):
                board.wait("what never comes#0", [1], "what never comes")
            board.close()
    connections.close()
