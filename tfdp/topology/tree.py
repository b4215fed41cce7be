"""The tree all-reduce: two binary trees reduce a half of the buffer each, and broadcast it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdp.topology.schedule import (
    Schedule,
    Steps,
    Topology,
    Transfer,
    as_phases,
    ranks_of_hosts,
    side_by_side,
)


@dataclasses.dataclass(frozen=True)
class Tree(Topology):
    """Two mirrored binary trees: few steps at any number of ranks, but more bytes.

    The buffer is cut into 2 chunks, each with a tree of its own. Ranks that are inner nodes of one
    tree are leaves of the other.

    1. Reduce, a step per level: each rank sends its parent the sum of its subtree. A parent adds
       its children's sums in the order of their ranks.
    2. Broadcast, a step per level: each parent sends the sum to its children.

    The ranks of a host are connected in each tree: h-1 of its edges cross between h hosts, the
    fewest.

    Same bits: each half is summed at its root, in one order, and copied from there.

    Cost for S bytes and n ranks: each rank sends 2S at most: a half up in each tree, and two halves
    down where it is an inner node. It has at most 2 transfers at a time in each direction, in
    2·log2 n steps, rounded down. On h > 1 hosts of at most m ranks there are at most
    2(2·log2 h + log2 m) steps, and a host sends 2S at most to others. The trees are not pipelined:
    a step moves S/2 whole, so large buffers take nearly log2 n times as long as with the topologies
    that send the fewest bytes.

    Reference: Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction
    and scan, Parallel Computing 35(12), 2009. Their trees number nodes in order and are pipelined;
    here the trees are heaps, one of them reversed.

    >>> schedule = Tree().schedule(4, [0, 0, 0, 0], 1024)
    >>> [[(t.source, t.target) for t in phase.transfers if t.chunks.start == 0]
    ...  for phase in schedule.phases]
    [[(3, 1)], [(1, 0), (2, 0)], [(0, 1), (0, 2)], [(1, 3)]]
    """

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns the reducing levels, then the broadcasting ones; see `Topology.schedule`."""
        groups = ranks_of_hosts(world_size, hosts)
        mirrored = [ranks[::-1] for ranks in groups[::-1]]
        trees = [_levels(_grow(groups)), _levels(_grow(mirrored))]
        up = side_by_side([_up(levels, half) for half, levels in enumerate(trees)])
        down = side_by_side([_down(levels, half) for half, levels in enumerate(trees)])
        return Schedule(as_phases(up + down), chunks=min(2, world_size))


@dataclasses.dataclass(frozen=True)
class _Node:
    rank: int
    children: tuple[_Node, ...]


def _grow(groups: list[list[int]], host: int = 0) -> _Node:
    """Builds a heap of hosts, each with its ranks."""
    below = [_grow(groups, h) for h in (2 * host + 1, 2 * host + 2) if h < len(groups)]
    return _attach(groups[host], below)


def _attach(ranks: list[int], below: list[_Node]) -> _Node:
    """Builds a tree of `ranks`; the subtrees `below` are near the root, at most two per node."""
    if not below:
        return _heap(ranks)
    if len(ranks) == 1:
        return _Node(ranks[0], tuple(below))
    return _Node(ranks[0], (below[0], _attach(ranks[1:], below[1:])))


def _heap(ranks: list[int], at: int = 0) -> _Node:
    children = (child for child in (2 * at + 1, 2 * at + 2) if child < len(ranks))
    return _Node(ranks[at], tuple(_heap(ranks, child) for child in children))


def _levels(root: _Node) -> list[list[tuple[int, int]]]:
    """Returns the edges (parent, child), level by level from the root."""
    levels, nodes = [], [root]
    while edges := [(node, child) for node in nodes for child in node.children]:
        levels.append([(node.rank, child.rank) for node, child in edges])
        nodes = [child for _, child in edges]
    return levels


def _up(levels: list[list[tuple[int, int]]], half: int) -> Steps:
    chunks = range(half, half + 1)
    return [[Transfer(c, p, chunks, reduce=True) for p, c in edges] for edges in reversed(levels)]


def _down(levels: list[list[tuple[int, int]]], half: int) -> Steps:
    chunks = range(half, half + 1)
    return [[Transfer(p, c, chunks, reduce=False) for p, c in edges] for edges in levels]
