"""The all-reduce by recursive halving (reduce-scatter) and recursive doubling (all-gather)."""

import dataclasses
from collections.abc import Sequence

from tfdp.topology.schedule import Schedule, Steps, Topology, Transfer, as_phases, ranks_of_hosts


@dataclasses.dataclass(frozen=True)
class HalvingDoubling(Topology):
    """A topology where pairs exchange halves, then quarters, ...: the fewest bytes, 2·log2 n steps.

    Let p be the largest power of two with p <= n. The buffer is cut into p chunks.

    1. Fold, where n > p: each of the n-p extra ranks sends all to a partner, which adds it.
    2. Halving, log2 p steps: the p ranks pair up. Each sends the half that it gives up and adds the
       half that it receives: S/2 bytes, then S/4, ... In the end each has one chunk of the sum.
    3. Doubling, log2 p steps: the same pairs in reverse order. Each sends all that it has of the
       sum.
    4. Unfold: partners send the sum to their extra ranks.

    Folds and the first, largest exchanges are inside hosts as far as the hosts' sizes allow. The
    reverse order would send m times as much between hosts of m ranks.

    Same bits: in a halving exchange each chunk goes one way. So every chunk is summed at one rank
    only, by additions of two values, which commute, and copied from there.

    Cost for S bytes and n ranks, a power of two: each rank sends 2(n-1)/n·S, in 2·log2 n steps, one
    transfer at a time in each direction. Between hosts of m ranks each, if h and m are powers of
    two, a host sends 2(h-1)/h·S. If n is no power of two, there are 2 steps more, an extra rank
    sends S and its partner 2(p-1)/p·S + S.

    Reference: Rabenseifner, Optimization of collective reduction operations, ICCS 2004; Thakur,
    Rabenseifner and Gropp, IJHPCA 19(1), 2005. Their algorithm halves at the greatest distance
    first; here the ranks are ordered so that this distance is inside a host.

    >>> schedule = HalvingDoubling().schedule(4, [0, 1, 0, 1], 1024)
    >>> [[(t.source, t.target, len(t.chunks)) for t in phase.transfers if t.source == 0]
    ...  for phase in schedule.phases]
    [[(0, 2, 2)], [(0, 1, 1)], [(0, 1, 1)], [(0, 2, 2)]]
    """

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns the folds, halvings, doublings and unfolds; see `Topology.schedule`."""
        partners = _fold(ranks_of_hosts(world_size, hosts))
        kept = [r for ranks in ranks_of_hosts(world_size, hosts) for r in ranks]
        order = _pair_up([rank for rank in kept if rank not in partners], hosts)
        everything = range(len(order))
        fold = [Transfer(e, p, everything, reduce=True) for e, p in partners.items()]
        unfold = [Transfer(p, e, everything, reduce=False) for e, p in partners.items()]
        steps = [fold, *_halve(order), *_double(order), unfold]
        return Schedule(as_phases(steps), chunks=len(order))


def _fold(groups: list[list[int]]) -> dict[int, int]:
    """Returns each extra rank's partner: on its host if one is left, hosts of odd size first."""
    left = {host: list(ranks) for host, ranks in enumerate(groups)}
    world_size = sum(map(len, groups))
    extras = world_size - (1 << (world_size.bit_length() - 1))
    partners: dict[int, int] = {}
    folded = dict.fromkeys(left, 0)
    while len(partners) < extras:
        able = [host for host in left if folded[host] < len(groups[host]) // 2]
        if not able:
            break
        host = max(able, key=lambda host: (len(left[host]) % 2, len(left[host]), -host))
        partners[left[host].pop()] = left[host][folded[host]]
        folded[host] += 1
    single = [rank for host in left for rank in left[host][folded[host] :]]
    missing = extras - len(partners)
    partners.update(zip(single[len(single) - missing :], single[:missing], strict=True))
    return partners


def _pair_up(ranks: list[int], hosts: Sequence[int]) -> list[int]:
    """Orders 2^k ranks so that ranks whose positions differ in a low bit share a host."""
    units = [[rank] for rank in ranks]
    while len(units) > 1:
        pairs, rest = [], []
        for host in sorted({hosts[unit[0]] for unit in units}):
            here = [unit for unit in units if hosts[unit[0]] == host]
            if len(here) % 2:
                rest.append(here.pop())
            pairs += list(zip(here[::2], here[1::2], strict=True))
        pairs += list(zip(rest[::2], rest[1::2], strict=True))
        units = [a + b for a, b in pairs]
    return units[0]


def _halve(order: list[int]) -> Steps:
    steps: Steps = []
    bit, held = 1, [range(len(order))] * len(order)
    while bit < len(order):
        step = []
        for position, rank in enumerate(order):
            half = len(held[position]) // 2
            low, high = held[position][:half], held[position][half:]
            held[position], given = (high, low) if position & bit else (low, high)
            step.append(Transfer(rank, order[position ^ bit], given, reduce=True))
        steps.append(step)
        bit *= 2
    return steps


def _double(order: list[int]) -> Steps:
    """Returns the halving in reverse: a rank returns what it was given, now as part of the sum."""
    return [
        [Transfer(t.target, t.source, t.chunks, reduce=False) for t in step]
        for step in reversed(_halve(order))
    ]
