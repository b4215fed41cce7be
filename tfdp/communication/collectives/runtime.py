"""TensorFlow's collective runtime between processes: its start, and the end of what waits."""

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.base import machine
from tfdp.cluster.socket_filter import Network, doorkeeper, is_beside
from tfdp.cluster.spec import cannot_listen, host_of, port_of
from tfdp.communication.collectives._tensorflow import (
    ConfigProto,
    ServerDef,
    context,
    context_config,
)
from tfdp.communication.collectives._tensorflow import global_seed as global_seed
from tfdp.errors import ClusterError

_JOB = "worker"
_SHARE = "TF_GRPC_REUSE_PORT"


def start(rank: int, addresses: Sequence[str], admitted: Sequence[Network] | None = None) -> None:
    """Starts this process' server; returns once it listens.

    The server listens on all interfaces and does what anybody asks of it; TensorFlow gives it
    neither another address nor credentials. The kernel is told to let nobody but `admitted`
    connect.

    There is no coordination service: it would end the process without an error where a peer is
    lost.

    Args:
      rank: The rank of this process.
      addresses: "host:port" of each process.
      admitted: The networks that may connect; None: everybody.

    Raises:
      ClusterError: TensorFlow is in use already, or cannot listen on the address.
    """
    ctx = context()
    try:
        ctx.configure_collective_ops(
            collective_leader=f"/job:{_JOB}/replica:0/task:0",
            scoped_allocator_enabled_ops=(),
            device_filters=(f"/job:{_JOB}/task:{rank}",),
        )
    except RuntimeError:
        raise ClusterError(
            f"Rank {rank}: the strategy must be made before TensorFlow is used, but an operation "
            "has run already. Make `tfdp.DataParallelStrategy()` the first thing after the imports."
        ) from None
    if _ranks_share_cores(rank, addresses, len(machine.cores())):
        _let_idle_threads_sleep()
    server = ServerDef(
        cluster=tf.train.ClusterSpec({_JOB: list(addresses)}).as_cluster_def(),
        default_session_config=ctx.config,
        job_name=_JOB,
        task_index=rank,
        protocol="grpc",
    )
    door = None if admitted is None else _door(admitted, rank, port_of(addresses[rank]))
    try:
        with contextlib.nullcontext() if door is None else _sharing_ports():
            ctx.enable_collective_ops(server)
            ctx.ensure_initialized()
    except tf.errors.OpError as error:
        raise ClusterError(
            f"Rank {rank}: TensorFlow must be able to listen at {addresses[rank]}, but: "
            f"{error.message}. Give this rank another port on all hosts."
        ) from error
    if door is not None:
        if not is_beside(door):
            _warn_of_open_port(rank, port_of(addresses[rank]), "TensorFlow listens elsewhere")
        # The kernel closes the socket with the process; Python would, before TensorFlow ends.
        door.detach()


def _ranks_share_cores(rank: int, addresses: Sequence[str], cores: int) -> bool:
    """Returns whether this rank's host has fewer than two cores for each of its ranks."""
    hosts = [host_of(address) for address in addresses]
    return cores < 2 * hosts.count(hosts[rank])


def _let_idle_threads_sleep() -> None:
    """Has TensorFlow's threads sleep as soon as they have nothing to do; before it starts.

    They spin for a while otherwise, on the core where another rank, or another thread of this one,
    computes.
    """
    tf.config.list_physical_devices()  # only thereafter TensorFlow leaves the devices as they are
    config = ConfigProto()
    known = context_config(context())
    if known is not None:
        config.CopyFrom(known)
    config.experimental.disable_thread_spinning = True
    context_config.set(context(), config)


def _door(networks: Sequence[Network], rank: int, port: int) -> socket.socket | None:
    try:
        return doorkeeper(networks, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise cannot_listen(rank, port, error) from error
        _warn_of_open_port(rank, port, str(error))
        return None


def _warn_of_open_port(rank: int, port: int, reason: str) -> None:
    logging.getLogger("tfdp").warning(
        "Rank %d: TensorFlow does what whoever reaches port %d asks of it, and this system cannot "
        "close the port to other hosts (%s). Let a firewall do it (SECURITY.md).",
        rank,
        port,
        reason,
    )


@contextlib.contextmanager
def _sharing_ports() -> Iterator[None]:
    """Lets sockets of this process share the server's port, as `doorkeeper` needs it."""
    before = os.environ.get(_SHARE)
    os.environ[_SHARE] = "1"
    try:
        yield
    finally:
        del os.environ[_SHARE]
        if before is not None:
            os.environ[_SHARE] = before


def abort(message: str) -> None:
    """Ends all collectives of this process, now and later, with `message`."""
    context().abort_collective_ops(tf.errors.UNAVAILABLE, message)
