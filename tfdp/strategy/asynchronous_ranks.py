"""The group of a process whose strategy lets each rank train apart from the others."""

from collections.abc import Mapping

from tfdp.cluster import Cluster, rank_status
from tfdp.communication import collectives
from tfdp.communication.homes import OuterUpdate, RanksApart
from tfdp.errors import ClusterError
from tfdp.synchronization import Asynchronous, Synchronization

_joined: list[RanksApart] = []


def check_first(cluster: Cluster, other: bool = False) -> None:
    """Checks that no strategy, or no other one, has met the ranks of the cluster.

    Args:
      cluster: The cluster.
      other: Whether another strategy has.

    Raises:
      ClusterError: One has.
    """
    if cluster.world_size > 1 and (_joined or other):
        raise ClusterError(
            f"Rank {cluster.rank}: a process of a cluster can make one strategy whose ranks train "
            "apart, with synchronization=tfdp.synchronization.Asynchronous(...), and no other one "
            "beside it, but it has made a strategy before. Use one for all models."
        )


def join(
    cluster: Cluster,
    local_size: int,
    synchronization: Synchronization,
    options: Mapping[str, object],
    timeouts: tuple[float, float],
) -> RanksApart:
    """Returns the group; in a cluster it is met once, for the life of the process.

    Args:
      cluster: The cluster.
      local_size: The number of devices in each process.
      synchronization: The method by which ranks train apart.
      options: What else all ranks must have alike, by name; JSON.
      timeouts: How long there may be no news while ranks wait, and how long they may take to start.

    Raises:
      ClusterError: The ranks do not come together, or differ; or the process has met them already.
    """
    assert isinstance(synchronization, Asynchronous)
    check_first(cluster, collectives.joined())
    rank_status.tell(begun=True)
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
        _joined.append(made)
    return made
