"""Patterns on hosts with equal numbers of ranks, by formulas: for thousands of ranks at once.

A ring of n ranks has 2n(n-1) transfers. Where every host has as many ranks, ranks are alike, and so
are most steps: a formula says what one of them sends.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from tfdp.topology.direct import Direct
from tfdp.topology.halving_doubling import HalvingDoubling
from tfdp.topology.hierarchical import Hierarchical
from tfdp.topology.native import Native
from tfdp.topology.patterns import Pattern, Stride, joined, pattern_of
from tfdp.topology.ring import Ring
from tfdp.topology.schedule import Topology
from tfdp.topology.torus import Torus
from tfdp.topology.tree import Tree

# Up to so many ranks the transfers are listed, which holds for any topology.
_LISTED = 32
# The bytes that stand for a buffer; patterns are scaled from it.
_UNIT = 2**40


def regular_pattern(
    topology: Topology, hosts: int, ranks_per_host: int, size_bytes: float
) -> Pattern | None:
    """Returns what a topology sends on equal hosts, whose ranks follow each other.

    Args:
      topology: Any topology up to 32 ranks; beyond that one of tfdp's.
      hosts: The number of hosts.
      ranks_per_host: The number of ranks of each.
      size_bytes: The size of the buffer.

    Returns:
      The pattern; None where only a list of all transfers would tell it: halving and doubling on
      more than 32 ranks whose hosts, or ranks on a host, are no power of two, a torus that is given
      rows and columns, and a user's own.

    Cost: a few formulas; the first time on up to 32 ranks, and for `Tree`, a list of transfers.

    >>> regular_pattern(Ring(), 512, 8, 8.0 * 4096).between_bytes
    65520.0
    """
    unit = _unit(topology, hosts, ranks_per_host)
    return None if unit is None else unit.scaled(size_bytes / _UNIT)


@functools.cache
def _unit(topology: Topology, hosts: int, each: int) -> Pattern | None:
    count = hosts * each
    if count <= _LISTED or isinstance(topology, Tree):
        places = [rank // each for rank in range(count)]
        return pattern_of(topology.schedule(count, places, _UNIT), places, _UNIT)
    if isinstance(topology, Ring | Native):
        return _ring(hosts, each, isinstance(topology, Native))
    if isinstance(topology, Direct):
        return _direct(hosts, each)
    if isinstance(topology, HalvingDoubling):
        powers = hosts & (hosts - 1) == 0 and each & (each - 1) == 0
        return _halving_doubling(hosts, each) if powers else None
    if isinstance(topology, Hierarchical):
        return _hierarchical(topology, hosts, each)
    if topology == Torus():
        return _torus(hosts, each)
    return None


def _ring(hosts: int, each: int, engine: bool) -> Pattern:
    """2(n-1) steps, in each of which a rank sends an n-th on."""
    count = hosts * each
    part, times = _UNIT / count, 2 * (count - 1)
    stride = Stride(
        times,
        part * (each > 1),
        part * (hosts > 1),
        2 * part,
        engine,
        each > 1,
        hosts > 1,
    )
    return _of([stride], 1 if engine else 2 * times)


def _direct(hosts: int, each: int) -> Pattern:
    """Two steps, in each of which a rank sends every other an n-th."""
    count = hosts * each
    part = _UNIT / count
    stride = Stride(
        2,
        part * (each - 1),
        part * each * (count - each),
        2 * part * (count - 1),
        False,
        each > 1,
        hosts > 1,
    )
    return _of([stride], 4 * (count - 1))


def _halving_doubling(hosts: int, each: int) -> Pattern:
    """log2 n exchanges of a half, a quarter, ..., those within hosts first, and their reverse."""
    halving, given = [], float(_UNIT)
    for bit in range(int(math.log2(hosts * each))):
        given /= 2
        within = 2**bit < each
        halving.append(
            Stride(
                1,
                given if within else 0.0,
                0.0 if within else each * given,
                2 * given,
                False,
                within,
                not within,
            )
        )
    return _of([*halving, *reversed(halving)], 4 * len(halving))


def _hierarchical(topology: Hierarchical, hosts: int, each: int) -> Pattern | None:
    """The inner one's reducing steps on a host, the outer one on all parts, the copying steps."""
    inner, outer = _unit(topology.inner, 1, each), _unit(topology.outer, hosts, 1)
    if inner is None or outer is None or isinstance(topology.inner, Tree):
        return None
    steps = [
        step
        for stride in inner.strides
        for step in [dataclasses.replace(stride, times=1)] * stride.times
    ]
    half = len(steps) // 2
    # Each of a host's ranks has an `each`-th of what the host sends.
    between = [
        Stride(s.times, 0.0, s.between_bytes, s.rank_bytes / each, False, False, True)
        for s in outer.strides
    ]
    return Pattern(
        joined([*steps[:half], *between, *steps[half:]]),
        inner.operations + outer.operations,
        inner.inside_bytes,
        outer.between_bytes,
    )


def _torus(hosts: int, each: int) -> Pattern:
    """Rings in rows, rings of what they leave in columns, and the rows' second half."""
    count = hosts * each
    rows, columns = Torus().grid(count, [rank // each for rank in range(count)])
    within = each > 1  # then rows are inside hosts
    row, part = _UNIT / columns, _UNIT / count
    across = Stride(
        columns - 1,
        row if within else 0.0,
        0.0 if within else row,
        2 * row,
        False,
        within,
        not within,
    )
    # A host's last row of ranks sends to the next host, or each rank does.
    down = Stride(
        2 * (rows - 1),
        part if each > columns else 0.0,
        part * min(columns, each) if hosts > 1 else 0.0,
        2 * part,
        False,
        each > columns,
        hosts > 1,
    )
    return _of([across, down, across], 2 * (2 * (columns - 1) + 2 * (rows - 1)))


def _of(strides: list[Stride], operations: int) -> Pattern:
    """Returns the pattern in which the same ranks are the busiest in all steps."""
    kept = joined(stride for stride in strides if stride.times)
    return Pattern(
        kept,
        operations,
        sum(s.times * s.inside_bytes for s in kept),
        sum(s.times * s.between_bytes for s in kept),
    )
