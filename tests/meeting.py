"""Ranks as threads of one process: everything but TensorFlow."""

import concurrent.futures
import contextlib
import socket
import time

from tfdp.cluster.control_channel import ControlChannel
from tfdp.cluster.launch.rank_start import ReservedPorts
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.spec import Cluster

_reserved = []


def free_ports(number):
    """As many different ports that nobody listens on.

    Neither a connection's own end nor another launcher or test gets them while this process lives.
    """
    _reserved.append(ReservedPorts(number))
    _reserved[-1].release()
    return _reserved[-1].ports


def clusters(world_size, fixed_addresses=True, host="127.0.0.1"):
    """One `Cluster` for each rank."""
    addresses = tuple(f"{host}:{port}" for port in free_ports(world_size))
    return [
        Cluster(rank, world_size, addresses[0], addresses if fixed_addresses else None, "TF_CONFIG")
        for rank in range(world_size)
    ]


def connection(address, within_seconds=60.0):
    """A connection to who listens there, soon."""
    deadline = time.monotonic() + within_seconds
    while True:
        try:
            return socket.create_connection(address, 1.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def on_all(*calls):
    """Runs one call for each rank at once; gives what they return or raise."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def no_difference(introductions):
    """All introductions will do."""
    return None


@contextlib.contextmanager
def boards(world_size, timeout_seconds=60.0):
    """The ranks' boards, connected through rank 0."""
    described = clusters(world_size)
    meetings = on_all(*(lambda c=c: meet(c, {}, no_difference, 60.0) for c in described))
    made = [
        ControlChannel(rank, world_size, meeting.connections, timeout_seconds)
        for rank, meeting in enumerate(meetings)
    ]
    try:
        yield made
    finally:
        for board in reversed(made):
            board.close()
