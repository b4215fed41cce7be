"""Sums in two levels of groups, by an engine's primitives: what NCCL runs of a topology.

NCCL sums and gathers in groups, and its own algorithm does. What two ranks send each other it
cannot be given: see `tfdp.communication.engines.TensorFlowEngine`.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.communication.engines import Engine
from tfdp.topology import Auto, Hierarchical, Native, Topology, Torus
from tfdp.topology.schedule import host_order, ranks_of_hosts


def rows_of(
    topology: Topology, world_size: int, hosts: Sequence[int]
) -> list[tuple[int, ...]] | None:
    """Returns the groups in whose parts a topology sums, or None where it has no such.

    These are the hosts of `Hierarchical`, if they have equally many ranks, and the rows of `Torus`.

    >>> rows_of(Hierarchical(), 4, [0, 1, 0, 1]), rows_of(Hierarchical(), 3, [0, 0, 1])
    ([(0, 2), (1, 3)], None)
    """
    rows: list[list[int]] = []
    if isinstance(topology, Hierarchical):
        rows = ranks_of_hosts(world_size, hosts)
    elif isinstance(topology, Torus):
        _, columns = topology.grid(world_size, hosts)
        ranks = host_order(world_size, hosts)
        rows = [ranks[first : first + columns] for first in range(0, world_size, columns)]
    if len({len(row) for row in rows}) != 1:
        return None
    return [tuple(sorted(row)) for row in rows]


def sum_in_rows(
    engine: Engine, tensor: tf.Tensor, rows: Sequence[tuple[int, ...]], rank: int
) -> tf.Tensor:
    """Returns the sum of a tensor of known shape over all ranks, the same bits on each of them.

    1. Each row of ranks sums the tensor, and each of its c ranks gets a part (a reduce-scatter).
    2. The r ranks that have the same part, one of each row, sum it.
    3. Each row gathers the parts.

    For S bytes a rank sends 2(c-1)/c·S in its row, and 2(r-1)/r·S/c to other rows.

    Args:
      engine: Sums and gathers in groups.
      tensor: The caller's own.
      rows: Groups of equally many ranks, each rank in one.
      rank: The caller.
    """
    row = next(row for row in rows if rank in row)
    column = tuple(sorted(each[row.index(rank)] for each in rows))
    size = int(tensor.shape.num_elements())
    padded = tf.pad(tf.reshape(tensor, [-1]), [[0, -size % len(row)]])
    part = engine.reduce_scatter(tf.reshape(padded, [len(row), -1]), row)
    whole = engine.all_gather(engine.all_reduce(part, column), row)
    return tf.reshape(whole[:size], tensor.shape)


def said_of(topology: Topology, world_size: int, hosts: Sequence[int]) -> str | None:
    """Returns what users of NCCL should know of a topology, or None where there is nothing.

    >>> said_of(Native(), 2, [0, 0]), said_of(Torus(), 4, [0, 0, 1, 1])
    (None, None)
    """
    every = [rule.topology for rule in topology.rules] if isinstance(topology, Auto) else [topology]
    for each in every:
        if isinstance(each, Native):
            continue
        if rows_of(each, world_size, hosts) is None:
            return (
                f"NCCL sums over all ranks at once, or over hosts and rows of equally many, and "
                f"{each} is made of what two ranks send each other. That goes through the hosts' "
                "memory and TensorFlow's gRPC, many times slower than NCCL. Use "
                'topology="native", NCCL\'s own, or "hierarchical" on hosts with equally many '
                "ranks."
            )
        if isinstance(each, Hierarchical) and each != Hierarchical():
            return (
                f"NCCL sums within hosts, and between them, by algorithms of its own, and not by "
                f'those of {each}. Use topology="hierarchical".'
            )
    return None
