"""TensorFlow's collective runtime between processes: start it, and end what waits in it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import tensorflow as tf

from tfdp.cluster.admission import LOOPBACK, admit_only
from tfdp.cluster.spec import host_of, is_loopback, port_of
from tfdp.collectives._tensorflow import ServerDef, context
from tfdp.collectives._tensorflow import global_seed as global_seed
from tfdp.errors import ClusterError

_JOB = "worker"


def start(rank: int, addresses: Sequence[str]) -> None:
    """Starts this process' server; returns once it listens.

    It listens on all interfaces and does what anybody asks of it; TensorFlow gives it neither
    another address nor credentials. Where all processes are on this host, the kernel is asked to
    let no other host connect.

    No coordination service: it would end the process where a peer is lost, without an error.

    Args:
      rank: This process'.
      addresses: "host:port" of each process.

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
    server = ServerDef(
        cluster=tf.train.ClusterSpec({_JOB: list(addresses)}).as_cluster_def(),
        default_session_config=ctx.config,
        job_name=_JOB,
        task_index=rank,
        protocol="grpc",
    )
    try:
        ctx.enable_collective_ops(server)
        ctx.ensure_initialized()
    except tf.errors.OpError as error:
        raise ClusterError(
            f"Rank {rank}: TensorFlow must be able to listen at {addresses[rank]}, but: "
            f"{error.message}. Give this rank another port on all hosts."
        ) from error
    if all(is_loopback(host_of(address)) for address in addresses):
        _admit_this_host(rank, addresses)


def _admit_this_host(rank: int, addresses: Sequence[str]) -> None:
    port = port_of(addresses[rank])
    try:
        admitted = admit_only(LOOPBACK, port)
    except OSError:  # a kernel without such filters, or a sandbox
        admitted = False
    if not admitted:
        logging.getLogger("tfdp").warning(
            "Rank %d: TensorFlow listens on port %d of all interfaces, and this system lets tfdp "
            "close it to no other host. Let a firewall do it (SECURITY.md).",
            rank,
            port,
        )


def abort(message: str) -> None:
    """Ends all collectives of this process, now and later, with `message`."""
    context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def device_prefix(rank: int) -> str:
    """How TensorFlow names the devices of a process.

    >>> device_prefix(3)
    '/job:worker/replica:0/task:3'
    """
    return f"/job:{_JOB}/replica:0/task:{rank}"
