"""Collectives as programs: generators that begin sends and receives, and add what has arrived.

A program yields requests and is resumed when they are done. What runs it may run others meanwhile.
The programs of one rank's collective that run at the same time are its strands.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import numpy as np

from tfdp.communication.engines.chunked_tensor import slices
from tfdp.communication.engines.host.byte_transport import MOST_SLICES_BETWEEN_HOSTS, Lane, Request
from tfdp.communication.engines.host.chunked_array import ChunkedArray
from tfdp.topology import Direct, Exchange, Hierarchical, Schedule
from tfdp.topology.schedule import MOST_SLICES

Strand: TypeAlias = Generator[Sequence[Request], None, None]

# Up to this size of what arrives at a rank, an all-reduce that sends everything to everybody takes
# one step of latency instead of two, and its bytes do not count.
_SMALL_BYTES = 2**16

# Of two ranks each sends as many bytes in one step as in two. Above this size the half of the sum
# that each is then spared takes longer than the second step.
_SMALL_BYTES_OF_TWO = 2**22

# From this size on what arrives from one other rank is added where the result will be, for a third
# array would push more out of the cache. A single element must not be: of two NaNs, NumPy would
# give another one on each of the ranks.
_IN_PLACE_BYTES = 2**16


@dataclasses.dataclass
class HostCollective:
    """One rank's part of a collective.

    Attributes:
      strands: The programs to run.
      result: The array that holds the result once all strands are done.
      in_turn: Whether a strand begins only once those before it have got through a step, and few
        are under way. Where steps use different links, all strands would otherwise take the first
        one at the same time, while the links of the next have nothing to send.
    """

    strands: list[Strand]
    result: np.ndarray
    in_turn: bool = False


def all_gather(own: np.ndarray, lane: Lane, group: tuple[int, ...]) -> HostCollective:
    """Joins the members' arrays along axis 0, in the order of ranks, by sends to all others."""
    result = aligned((len(group) * own.shape[0], *own.shape[1:]), own.dtype)
    return HostCollective([_gather(own, result.reshape(len(group), -1), lane, group)], result)


def all_to_all(own: np.ndarray, lane: Lane, group: tuple[int, ...]) -> HostCollective:
    """Sends row i to member i, and returns the rows that the members send, in their order."""
    result = aligned(own.shape, own.dtype)
    return HostCollective([_swap_rows(own, result, lane, group)], result)


def all_reduce(
    own: np.ndarray, lane: Lane, group: tuple[int, ...], hosts: Sequence[int]
) -> HostCollective:
    """Sums the members' arrays, with the same bits on every member.

    Small arrays are sent to everybody and summed in the order of ranks. Of large ones each member
    sums its part for all (see `tfdp.topology.Direct`), first within its host, then between hosts.

    Args:
      own: The array of this rank.
      lane: Its sends and receives.
      group: The members, ascending.
      hosts: For each rank, a member or not, the index of its host.
    """
    small = _SMALL_BYTES_OF_TWO if len(group) == 2 else _SMALL_BYTES
    if own.nbytes * (len(group) - 1) > small:
        of_members = tuple(hosts[member] for member in group)
        return _plan_of_group(group, of_members, lane.rank)(own, lane)
    return _in_slices(functools.partial(_gather_and_sum, lane=lane, group=group), own)


class ExchangePlan:
    """The transfers of one rank, phase by phase, found once for all runs.

    Args:
      schedule: Says where chunks lie.
      exchanges: The phases, in their order.
      rank: The rank, as the transfers number it.
      hosts: For each number of the transfers the index of its host. Where they cross between hosts,
        there are more slices, which begin in turn, see `HostCollective`.
      ranks: The rank that each number of the transfers means; None: itself.
    """

    def __init__(
        self,
        schedule: Schedule,
        exchanges: Sequence[Exchange],
        rank: int,
        hosts: Sequence[int],
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._schedule = schedule
        self._phases = [(each.sent_by(rank), each.received_by(rank)) for each in exchanges]
        self._ranks = ranks
        transfers = (transfer for exchange in exchanges for transfer in exchange.transfers)
        self._crosses = any(hosts[each.source] != hosts[each.target] for each in transfers)

    def __call__(self, own: np.ndarray, lane: Lane) -> HostCollective:
        """Begins a run on an array of this rank's, whose sends and receives go by `lane`."""
        strand = functools.partial(self._strand, lane=lane)
        most = MOST_SLICES_BETWEEN_HOSTS if self._crosses else MOST_SLICES
        return _in_slices(strand, own, most, in_turn=self._crosses)

    def _strand(self, own: np.ndarray, result: np.ndarray, number: int, lane: Lane) -> Strand:
        parts = ChunkedArray(own, result)
        for sent, received in self._phases:
            busy: list[slice] = []
            outgoing = []
            for transfer in sent:
                where = self._schedule.slice_of(transfer.chunks, own.size)
                if where.start < where.stop:
                    outgoing.append((parts.read(where), self._rank(transfer.target)))
                    busy.append(where)
            requests: list[Request] = []
            arrivals: list[tuple[slice, np.ndarray, bool]] = []
            for transfer in received:
                where = self._schedule.slice_of(transfer.chunks, own.size)
                if where.start < where.stop:
                    free = not any(_overlap(at, where) for at in busy)
                    place = parts.landing(where, not transfer.reduce) if free else None
                    if place is None:
                        place = aligned((where.stop - where.start,), own.dtype)
                    arrivals.append((where, place, transfer.reduce))
                    busy.append(where)
                    source = self._rank(transfer.source)
                    requests.append(lane.receive(place, source, number))
            requests += [lane.send(array, target, number) for array, target in outgoing]
            yield requests
            for where, value, reduce in arrivals:
                (parts.add if reduce else parts.put)(where, value)
        parts.finish()

    def _rank(self, number: int) -> int:
        return number if self._ranks is None else self._ranks[number]


@functools.cache
def _plan_of_group(group: tuple[int, ...], hosts: tuple[int, ...], rank: int) -> ExchangePlan:
    """Returns the plan of a rank for the all-reduce of its group's large arrays."""
    topology = Hierarchical(inner=Direct(), outer=Direct())
    schedule = topology.schedule(len(group), hosts, _SMALL_BYTES)
    return ExchangePlan(schedule, schedule.exchanges(), group.index(rank), hosts, group)


def _in_slices(
    strand: Callable[[np.ndarray, np.ndarray, int], Strand],
    own: np.ndarray,
    most: int = MOST_SLICES,
    in_turn: bool = False,
) -> HostCollective:
    """Runs a strand for each slice of an array, given the slice, its result and its number."""
    result = aligned(own.shape, own.dtype)
    source, target = own.reshape(-1), result.reshape(-1)
    strands = [
        strand(source[start:stop], target[start:stop], number)
        for number, (start, stop) in enumerate(slices(own.size, own.nbytes, most))
    ]
    return HostCollective(strands, result, in_turn)


def _gather(own: np.ndarray, rows: np.ndarray, lane: Lane, group: tuple[int, ...]) -> Strand:
    others = [(row, member) for row, member in zip(rows, group, strict=True) if member != lane.rank]
    requests = [lane.receive(row, member) for row, member in others]
    requests += [lane.send(own, member) for _, member in others]
    rows[group.index(lane.rank)] = own.reshape(-1)
    yield requests


def _swap_rows(own: np.ndarray, result: np.ndarray, lane: Lane, group: tuple[int, ...]) -> Strand:
    requests: list[Request] = []
    rows = zip(own.reshape(len(group), -1), result.reshape(len(group), -1), group, strict=True)
    for sent, received, member in rows:
        if member == lane.rank:
            received[...] = sent
        else:
            requests += [lane.receive(received, member), lane.send(sent, member)]
    yield requests


def _gather_and_sum(
    own: np.ndarray, result: np.ndarray, number: int, lane: Lane, group: tuple[int, ...]
) -> Strand:
    in_place = len(group) == 2 and own.nbytes >= _IN_PLACE_BYTES
    requests: list[Request] = []
    arrays = []
    for member in group:
        array = own
        if member != lane.rank:
            array = result if in_place else np.empty(own.size, own.dtype)
            requests.append(lane.receive(array, member, number))
        arrays.append(array)
    for member in group:
        if member != lane.rank:
            requests.append(lane.send(own, member, number))
    yield requests
    np.add(arrays[0], arrays[1], out=result)
    for array in arrays[2:]:
        np.add(result, array, out=result)


def _overlap(one: slice, other: slice) -> bool:
    return one.start < other.stop and other.start < one.stop


# TensorFlow takes an array that lies at a multiple of this many bytes as a tensor without a copy.
_ALIGNMENT = 64

# To align an array takes longer than TensorFlow's copy of one below this size.
_COPIED_BYTES = 2**14


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array without values that TensorFlow takes without a copy, if it is large.

    >>> aligned((300, 50), np.dtype("float32")).ctypes.data % 64
    0
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < _COPIED_BYTES:
        return np.empty(shape, dtype)
    memory = np.empty(size_bytes + _ALIGNMENT, np.uint8)
    # `memory.ctypes` would take longer than all else here.
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size_bytes].view(dtype).reshape(shape)
