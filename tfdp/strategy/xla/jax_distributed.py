"""The start of `jax.distributed` for the processes of a cluster, as tfdp knows it."""

import contextlib
import errno
import json
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from tfdp import cluster
from tfdp.base import gpus, machine
from tfdp.cluster import rank_status, secret, tf_config
from tfdp.cluster.rendezvous import Meeting, meet
from tfdp.cluster.socket_filter import Network, admitted, check_admitted, doorkeeper
from tfdp.cluster.spec import Cluster, host_of, is_loopback, join_address, port_of
from tfdp.communication.collectives import introductions
from tfdp.communication.replicas import OneProcess, ProcessGroup
from tfdp.errors import ClusterError
from tfdp.strategy.xla import accelerators, pending
from tfdp.strategy.xla._jax import backend_has_started, coordinator_address, jax
from tfdp.strategy.xla.device_arrays import of_first
from tfdp.strategy.xla.jax_processes import JaxProcesses
from tfdp.strategy.xla.relay import relayed

_STARTUP_SECONDS = 300

# JAX's goodbye waits so long for the last process, which may go on for as long as it wants; and so
# long a process may give JAX no sign of life, since tfdp notices that.
_NEVER_SECONDS = 10**6

# The bytes in which process 0 tells where it listens.
_MOST_BYTES = 1024

_lock = threading.Lock()
_processes: list[JaxProcesses] = []


def join() -> None:
    """Joins this process in JAX with those of its cluster, before JAX starts; once.

    1. The processes meet at rank 0's address, as those of `DataParallelStrategy` do, and compare
       versions and what JAX will run on.
    2. Rank 0 reserves that port once more, or another one if a stranger took it meanwhile, and
       tells it. JAX's service listens there, and all connect to it, the others by a relay.

    Where `jax.distributed.initialize` has been called, its processes are taken.

    Raises:
      ClusterError: JAX has started already; ranks do not come, differ, or share a GPU; or
        `TF_CONFIG` has others than JAX.
    """
    tf_config.unset_if_blank(os.environ)
    with _lock:
        if not _processes:
            accelerators.split_cpu()
            found = _joined_by_user() if jax.distributed.is_initialized() else _joined()
            _processes.extend([] if found is None else [found])


def group(local_size: int) -> ProcessGroup:
    """Returns the processes of a strategy, after `join`.

    Args:
      local_size: The number of its devices in each process.
    """
    return _processes[0].with_devices(local_size) if _processes else OneProcess(local_size)


def _joined() -> JaxProcesses | None:
    """Returns the processes of tfdp's cluster; None: this one is alone."""
    if backend_has_started() and jax.process_count() > 1:
        raise ClusterError(
            f"The {jax.process_count()} processes that share devices must have met to train as "
            "one, but this one has not been told where. At the beginning of the program call "
            "`jax.distributed.initialize()`."
        )
    found = cluster.detect()
    if found.world_size == 1:
        rank_status.tell_alive()  # no other rank would notice its silence
        if not backend_has_started():
            accelerators.check_memory(accelerators.gpus_of_host())
        return None
    if backend_has_started():
        raise ClusterError(
            f"Rank {found.rank} must join the other {found.world_size - 1} of {found.source} "
            "before JAX is used, but JAX has started. Make `tfdp.XLAStrategy()` the first thing "
            "after the imports, without `devices`, before `jax.devices()` and all else of JAX; "
            "JAX_PLATFORMS, CUDA_VISIBLE_DEVICES and JAX_NUM_CPU_DEVICES choose devices."
        )
    rank_status.tell(begun=True)
    numbers = accelerators.gpus_of_host()
    accelerators.check_memory(numbers)
    meeting = _met(found, numbers, secret.in_environment())
    networks = admitted(meeting.addresses)
    if networks is not None:
        check_admitted(found.rank, meeting.hosts, networks)
    processes = JaxProcesses(found, meeting)
    with processes.explained(), pending.call():
        _initialize(processes, host_of(str(found.coordinator)), found, networks, numbers)
        jax.devices()
    return processes


def _initialize(
    processes: JaxProcesses,
    host: str,
    found: Cluster,
    networks: Sequence[Network] | None,
    numbers: list[int],
) -> None:
    """Has JAX's service listen on rank 0's host, at a port that is reserved until it does."""
    guard, port = None, 0
    if found.rank == 0:
        guard = _reserved(host, port_of(str(found.coordinator)), networks)
        port = guard.getsockname()[1]
    port = processes.from_first("the port of JAX's service", port).value
    # JAX would else take the signal of a preemption for itself, and the process go on.
    jax.config.update("jax_enable_preemption_service", False)
    if getattr(jax.config, "jax_cpu_collectives_implementation", None) is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    everywhere = "[::]" if guard is None or guard.family == socket.AF_INET6 else "0.0.0.0"
    own = join_address(host, port)
    with relayed(host, port) if guard is None else contextlib.nullcontext(own) as address:
        jax.distributed.initialize(
            address,
            found.world_size,
            found.rank,
            local_device_ids=numbers or None,
            cluster_detection_method="deactivate",
            initialization_timeout=_STARTUP_SECONDS,
            heartbeat_timeout_seconds=_NEVER_SECONDS,
            shutdown_timeout_seconds=_NEVER_SECONDS,
            coordinator_bind_address=own if is_loopback(host) else f"{everywhere}:{port}",
        )
    if guard is not None:
        if networks is None or is_loopback(host):
            guard.close()
        else:
            guard.detach()  # it keeps others away for as long as the process lives


def _reserved(host: str, port: int, networks: Sequence[Network] | None) -> socket.socket:
    """Returns a socket that keeps a port for JAX's service, which shares it; another, if taken.

    Where networks are named the socket keeps all others away, too.
    """
    for number in (port, 0):
        with contextlib.suppress(OSError):
            if networks is not None and not is_loopback(host):
                try:
                    return doorkeeper(networks, number)
                except OSError as error:
                    if error.errno == errno.EADDRINUSE:
                        raise
                    _warn_of_open_port(number, error)
            return _bound(host, number)
    raise ClusterError(
        f"Rank 0 must be able to listen on a port of {host} for JAX, but the system gives none. "
        "End other programs of this host."
    )


def _bound(host: str, port: int) -> socket.socket:
    loopback = is_loopback(host)
    by_6 = ":" in host if loopback else socket.has_dualstack_ipv6()
    found = socket.socket(socket.AF_INET6 if by_6 else socket.AF_INET)
    try:
        if by_6 and not loopback:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # The connections to rank 0's rendezvous are of this port and go on.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((("::1" if by_6 else "127.0.0.1") if loopback else "", port))
        # Only now: before, the socket of another run could bind the port together with this one.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        found.close()
        raise
    return found


def _warn_of_open_port(port: int, reason: OSError) -> None:
    logging.getLogger("tfdp").warning(
        "Rank 0: JAX's service listens on port %d for whoever reaches it, and this system cannot "
        "close it to other hosts (%s). Let a firewall do it (SECURITY.md).",
        port,
        reason,
    )


def _joined_by_user() -> JaxProcesses | None:
    """Returns the processes that `jax.distributed.initialize` has joined; None: it is one."""
    size, rank = jax.process_count(), jax.process_index()
    described = tf_config.detect(os.environ)
    if described is not None and described.world_size not in (1, size):
        raise ClusterError(
            f"All {described.world_size} processes of `TF_CONFIG` must join in JAX to train as "
            f"one, but `jax.distributed.initialize` was given {size}. Leave the call out: the "
            "strategy makes it."
        )
    if size == 1:
        return None
    with contextlib.ExitStack() as opened:
        told, listener = np.zeros(_MOST_BYTES, np.uint8), None
        if rank == 0:
            host = host_of(str(coordinator_address()))
            listener = opened.enter_context(_listening(host))
            address = join_address(host, listener.getsockname()[1])
            text = json.dumps([address, secret.made()]).encode()
            told[: len(text)] = np.frombuffer(text, np.uint8)
        address, made = json.loads(of_first(told).tobytes().rstrip(b"\0"))
        found = Cluster(rank, size, address, source="jax.distributed")
        shared = secret.in_environment() or made
        meeting = _met(found, accelerators.gpus_of_host(), shared, listener)
        return JaxProcesses(found, meeting, aborted_with_first=True)


def _listening(host: str) -> socket.socket:
    if is_loopback(host) or not socket.has_dualstack_ipv6():
        return socket.create_server((host if is_loopback(host) else "", 0))
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)


def _met(
    found: Cluster, numbers: list[int], shared: str | None, listener: socket.socket | None = None
) -> Meeting:
    own = introductions.own(0)  # how many devices there are JAX does not tell before it starts
    own["versions"] |= {"jax": jax.__version__, "jaxlib": metadata.version("jaxlib")}
    own["jax"] = {
        "JAX_PLATFORMS": accelerators.platforms(),
        "the plugin": machine.plugin_of_jax({}) or "",
        "GPUs": len(numbers),
    }
    own["gpus"] = gpus.identities(numbers) if numbers else []
    met = meet(found, own, difference, _STARTUP_SECONDS, shared, listener)
    met.close_port()  # no server of TensorFlow's listens
    return met


def difference(told: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns in words what differs between ranks and must not; None if they can work together.

    Args:
      told: What each rank told of itself, with its `address`, by rank.
    """
    said = introductions.difference([dict(each) for each in told])
    if said is not None:
        return said
    first: dict[str, int] = {}
    for rank, own in enumerate(told):
        for name, value in told[0]["jax"].items():
            if own["jax"].get(name) != value:
                return (
                    "All ranks must have the same for JAX to run on, but of "
                    f"{name} rank 0 has {value!r} and rank {rank} ({own['address']}) has "
                    f"{own['jax'].get(name)!r}. Install and set the same on all hosts; "
                    "CUDA_VISIBLE_DEVICES gives each rank as many GPUs."
                )
        for gpu in own["gpus"]:
            if first.setdefault(gpu, rank) != rank:
                return (
                    "Each rank must have GPUs of its own, for NCCL refuses two ranks on one, but "
                    f"rank {first[gpu]} and rank {rank} both have {gpu}. Start as many ranks as "
                    f"there are GPUs, by `tfdp run`, `srun` or `mpirun`; or set {gpus.VISIBLE} for "
                    "each rank."
                )
    return None
