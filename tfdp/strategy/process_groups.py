"""The processes that train together under a strategy: in a cluster each process meets them once."""

import threading
from collections.abc import Mapping, Sequence

from tfdp.cluster import Cluster, rank_status
from tfdp.communication.collectives import ClusterProcesses
from tfdp.communication.homes import OuterUpdate, RanksApart
from tfdp.communication.replicas import OneProcess, ProcessGroup
from tfdp.errors import ClusterError
from tfdp.strategy import replica_devices
from tfdp.synchronization import Asynchronous, Synchronization

_lock = threading.Lock()
_met: list[ClusterProcesses | RanksApart] = []  # the group in which this process meets the others


def group(
    cluster: Cluster,
    devices: Sequence[str] | None,
    synchronization: Synchronization | None,
    options: Mapping[str, object],
    timeouts: tuple[float, float],
) -> ProcessGroup:
    """Returns the processes of a new strategy; in a cluster the first call waits for all of them.

    Args:
      cluster: The cluster.
      devices: The devices that the strategy was given.
      synchronization: The strategy's, by which each rank may train apart from the others.
      options: What else ranks that train apart must have alike, by name; JSON.
      timeouts: How long there may be no news while ranks wait, and how long they may take to start.

    Raises:
      ClusterError: The ranks do not come together, run different versions or have different numbers
        of devices; the cluster is another one than that of an earlier strategy; or there was one
        beside which there can be no other.
    """
    apart = synchronization is not None and synchronization.ranks_apart
    if cluster.world_size == 1 and not apart:
        alone = OneProcess(len(replica_devices.resolve(devices)))
        rank_status.tell_alive()  # no other rank would notice its silence
        return alone
    with _lock:
        _check_first(cluster, apart)
        if _met:
            replica_devices.resolve(devices)  # raises here, before the ranks wait for each other
        local_size = replica_devices.count(devices)
        rank_status.tell(begun=True)
        if apart:
            return _joined_apart(cluster, local_size, synchronization, options, timeouts)
        return _joined(cluster, local_size, timeouts)


def _check_first(cluster: Cluster, apart: bool) -> None:
    is_apart = any(isinstance(each, RanksApart) for each in _met)
    if cluster.world_size > 1 and (is_apart or (apart and _met)):
        raise ClusterError(
            f"Rank {cluster.rank}: a process of a cluster can make one strategy whose ranks train "
            "apart, with synchronization=tfdp.synchronization.Asynchronous(...), and no other one "
            "beside it, but it has made a strategy before. Use one for all models."
        )


def _joined_apart(
    cluster: Cluster,
    local_size: int,
    synchronization: Synchronization | None,
    options: Mapping[str, object],
    timeouts: tuple[float, float],
) -> RanksApart:
    assert isinstance(synchronization, Asynchronous)
    made = RanksApart(
        cluster,
        local_size,
        {"synchronization": synchronization.describe(), **options},
        OuterUpdate(
            cluster.world_size, synchronization.outer_learning_rate, synchronization.outer_momentum
        ),
        synchronization.staleness,
        *timeouts,
    )
    if cluster.world_size > 1:
        _met.append(made)
    return made


def _joined(cluster: Cluster, local_size: int, timeouts: tuple[float, float]) -> ClusterProcesses:
    if not _met:
        _met.append(ClusterProcesses(cluster, local_size, *timeouts))
    (processes,) = _met
    assert isinstance(processes, ClusterProcesses)
    if (processes.cluster, processes.local_size) != (cluster, local_size):
        raise ClusterError(
            f"Rank {processes.rank}: all strategies of a process must have the same cluster "
            f"and number of devices, but this one has {cluster} with {local_size} devices and "
            f"the first one {processes.cluster} with {processes.local_size}."
        )
    processes.board.timeout_seconds = timeouts[0]
    processes.watch_uncaught()
    return processes
