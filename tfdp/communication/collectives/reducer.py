"""Sums of lists of tensors over the replicas: in buckets, by a topology's schedule for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.base import bucketing, recording
from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import reduce_scatter, slices, summable, two_level_sums
from tfdp.communication.collectives.packing import packed, unpacked
from tfdp.communication.collectives.payloads import Compress, CompressBucket, Transport
from tfdp.communication.collectives.sent_bytes import SentBytes
from tfdp.communication.engines import Engine
from tfdp.topology import Auto, Exchange, Native, Schedule, Topology, Transfer
from tfdp.topology.costs import cost
from tfdp.topology.steps import ranks_of_hosts


class Reducer:
    """Sums lists of tensors over the replicas, as the strategy does.

    Args:
      engine: Runs the primitives.
      topology: Gives the schedule for each bucket.
      hosts: For each rank the index of its host.
      bucket_bytes: The most bytes that travel together; tensors up to half this size do.

    Attributes:
      sent: Counts the bytes of sums that are told of.
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        hosts: Sequence[int],
        bucket_bytes: int,
    ) -> None:
        self._engine = engine
        self._topology = topology
        self._hosts = tuple(hosts)
        self.bucket_bytes = bucket_bytes
        self.sent = SentBytes()
        self._schedule(bucket_bytes)  # raises at once if the topology cannot cover the ranks

    @property
    def alone_bytes(self) -> int:
        """The least tensor that travels alone; GPUs copy into a bucket faster than they sum."""
        return self.bucket_bytes if self._engine.is_nccl else bucketing.ALONE_BYTES

    @property
    def is_native(self) -> bool:
        """Whether the engine sums in its own way."""
        topology = self._topology
        every = [rule.topology for rule in topology.rules] if isinstance(topology, Auto) else None
        return all(isinstance(each, Native) for each in every or [topology])

    def all_reduce(
        self,
        values: Sequence[slices.Value],
        rank: int,
        merge_rows: bool = False,
        compress: Compress | None = None,
    ) -> list[slices.Value]:
        """Returns the sum of each value over all replicas, the same bits on each of them.

        The sum of slices holds every replica's rows in the order of ranks, which is what one device
        given the global batch computes. Keras' Adam squares each row, so merged rows would train
        otherwise. Gathering sends n times the rows of the replica with the most.

        Args:
          values: Dense tensors, or IndexedSlices, of numbers.
          rank: The caller's rank.
          merge_rows: Whether slices may be summed by row before they travel; see
            `slices.all_reduce`.
          compress: Sums each bucket, and each value that is slices; None: they are sent as they
            are.
        """
        compress = compress or (lambda value, transport: transport.sum(value))
        results: list[slices.Value] = list(values)
        dense = []
        sparse: dict[int, Transport] = {}
        for index, value in enumerate(values):
            if not isinstance(value, tf.IndexedSlices):
                results[index] = tf.convert_to_tensor(value)
                dense.append(index)
        tables = [index for index, each in enumerate(values) if isinstance(each, tf.IndexedSlices)]
        indices = [values[index].indices for index in tables]
        announced = slices.announce(self._engine, indices, merge_rows) if tables else []
        for index, rows_ in zip(tables, announced, strict=True):
            sum_ = functools.partial(self._sum_slices, announced=rows_, rank=rank)
            sparse[index] = Transport(sum_)
            results[index] = compress(values[index], sparse[index])
        for bucket in self._buckets([results[index] for index in dense]):
            members = [dense[position] for position in bucket]
            tensors = [results[index] for index in members]
            transport = self._transport(rank)
            summed = unpacked(compress(packed(tensors), transport), tensors)
            for index, tensor in zip(members, summed, strict=True):
                results[index] = tensor
            self._tell(tensors, summed, functools.partial(self._bytes_sent, transport, rank))
        for index, transport in sparse.items():
            inputs, sums = [values[index].values], [results[index].values]
            self._tell(inputs, sums, functools.partial(self._bytes_sent, transport, rank))
        return results

    def bytes_sent(self, items: Sequence[bucketing.Item], rank: int) -> list[int]:
        """Returns for each bucket of a sum of dense tensors of known sizes the bytes of a rank."""
        found = []
        for members in self._assigned(items):
            size = sum(items[index].size_bytes or 0 for index in members)
            found.append(cost(self._schedule(size), self._hosts, size).bytes_sent[rank])
        return found

    def sum_by(
        self,
        compress: CompressBucket,
        tensors: Sequence[tf.Tensor],
        payload_bytes: Sequence[int],
        rank: int,
    ) -> list[tf.Tensor]:
        """Returns the sum of each tensor as `compress` makes it, bucket by bucket.

        Args:
          compress: Sums the tensors at some positions.
          tensors: What is to be summed; their shapes are known.
          payload_bytes: For each of them the bytes that stand for it: so buckets are filled.
          rank: The caller's rank.
        """
        results = list(tensors)
        sized = zip(tensors, payload_bytes, strict=True)
        for members in self._assigned([bucketing.Item(each.dtype.name, n) for each, n in sized]):
            transport = self._transport(rank)
            summed = compress(members, transport)
            for index, tensor in zip(members, summed, strict=True):
                results[index] = tensor
            sent = functools.partial(self._bytes_sent, transport, rank)
            self._tell([tensors[index] for index in members], summed, sent)
        return results

    def _tell(
        self,
        inputs: Sequence[tf.Tensor],
        sums: Sequence[tf.Tensor],
        sent: Callable[[], int | tf.Tensor],
    ) -> None:
        """Tells of a bucket what it has sent: the step's recording, and who counts."""
        if self.sent.is_asked:
            self.sent.note(sent())
        tap = recording.current()
        if tap is not None:
            tap.bucket(inputs, sums, sent)

    def sum_parts(
        self, tensors: Sequence[tf.Tensor], cuts: Sequence[Sharding], rank: int
    ) -> list[tf.Tensor]:
        """Returns the caller's parts of the tensors' sums, bucket by bucket: see `parts`."""
        return self._by_cut(reduce_scatter.sum_parts, tensors, cuts, rank)

    def gather_parts(
        self, own: Sequence[tf.Tensor], cuts: Sequence[Sharding], rank: int
    ) -> list[tf.Tensor]:
        """Returns the tensors of which each rank gives parts, bucket by bucket: see `parts`."""
        return self._by_cut(reduce_scatter.gather_parts, own, cuts, rank)

    def _by_cut(
        self,
        move: Callable[..., list[tf.Tensor]],
        tensors: Sequence[tf.Tensor],
        cuts: Sequence[Sharding],
        rank: int,
    ) -> list[tf.Tensor]:
        results = list(tensors)
        # Buckets follow the cuts, for the ranks' parts differ.
        items = [
            bucketing.Item(tensor.dtype.name, math.prod(cut.shape) * tensor.dtype.size)
            for tensor, cut in zip(tensors, cuts, strict=True)
        ]
        for members in self._assigned(items):
            given = [tensors[index] for index in members]
            found = move(given, [cuts[index] for index in members], self._transport(rank))
            for index, tensor in zip(members, found, strict=True):
                results[index] = tensor
        return results

    def sum_of_neighbours(
        self,
        tensors: Sequence[tf.Tensor],
        distances: Sequence[int],
        rank: int,
    ) -> list[tf.Tensor]:
        """Returns the sum of the caller's tensors and of those of its neighbours.

        Each rank sends its buckets to the ranks that are `distances` after its own, and to no
        other.

        Args:
          tensors: What is to be summed; their shapes are known.
          distances: The caller's rank minus a neighbour's, modulo their number.
          rank: The caller's rank.
        """
        count = self._engine.world_size
        exchange = Exchange(
            tuple(
                Transfer(source, (source + distance) % count, range(1), reduce=True)
                for source in range(count)
                for distance in distances
            )
        )
        results = list(tensors)
        for members in self._buckets(tensors):
            own = [tensors[index] for index in members]
            bucket = summable.as_summed(packed(own))
            total = self._engine.exchange(Schedule((exchange,)), [exchange], bucket)
            sums = unpacked(summable.as_before(total, own[0].dtype), own)
            for index, tensor in zip(members, sums, strict=True):
                results[index] = tensor
            sent = functools.partial(int, _bytes(bucket) * len(distances))
            self._tell(own, sums, sent)
        return results

    def broadcast(self, value: tf.Tensor, rank: int) -> tf.Tensor:
        """Returns rank 0's `value` on every replica, for numbers and booleans."""
        as_number = tf.cast(value, tf.int32) if value.dtype.is_bool else value
        own = as_number if rank == 0 else tf.zeros_like(as_number)
        (summed,) = self.all_reduce([own], rank)
        return tf.cast(summed, value.dtype)

    def _buckets(self, tensors: Sequence[tf.Tensor]) -> list[list[int]]:
        """Returns the positions of the tensors of each bucket."""
        return self._assigned([_item(tensor) for tensor in tensors])

    def _assigned(self, items: Sequence[bucketing.Item]) -> list[list[int]]:
        # Gradients come in the order of their layers; the backward pass begins with the last.
        last = len(items) - 1
        return [
            [last - position for position in bucket]
            for bucket in bucketing.assign(items[::-1], self.bucket_bytes, self.alone_bytes)
        ]

    def levels(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the ranks of a rank's host, and those of its place on all hosts.

        Raises:
          ValueError: The hosts have different numbers of ranks.
        """
        hosts = ranks_of_hosts(self._engine.world_size, self._hosts)
        if len(sizes := {len(ranks) for ranks in hosts}) > 1:
            raise ValueError(
                "`BetweenHosts` needs the same number of replicas on each host, but they have "
                f"{', '.join(str(len(ranks)) for ranks in hosts)}. Use {max(sizes)} on each, or "
                "the compression inside of it, which does not ask for hosts."
            )
        (own,) = [tuple(ranks) for ranks in hosts if rank in ranks]
        place = own.index(rank)
        return own, tuple(ranks[place] for ranks in hosts)

    def _transport(self, rank: int) -> Transport:
        everyone = tuple(range(self._engine.world_size))

        def levels() -> tuple[Transport, Transport]:
            within, between = self.levels(rank)
            return self._transport_of(rank, within), self._transport_of(rank, between)

        return self._transport_of(rank, everyone, levels)

    def _transport_of(
        self,
        rank: int,
        group: tuple[int, ...],
        levels: Callable[[], tuple[Transport, Transport]] | None = None,
    ) -> Transport:
        engine = self._engine

        def gather(tensor: tf.Tensor) -> tf.Tensor:
            stacked = engine.all_gather(tensor[tf.newaxis], group)
            return tf.ensure_shape(stacked, [len(group), *tensor.shape])

        def sum_(tensor: tf.Tensor) -> tf.Tensor:
            # The topology is that of all ranks.
            is_all = len(group) == engine.world_size
            return self._run_schedule(tensor, rank) if is_all else engine.all_reduce(tensor, group)

        return Transport(
            sum_,
            gather,
            lambda tensor: engine.all_to_all(tensor, group),
            group.index(rank),
            len(group),
            levels,
            lambda tensor: engine.reduce_scatter(tensor, group),
        )

    def _sum_slices(
        self, value: tf.IndexedSlices, announced: slices.Announced, rank: int
    ) -> tf.IndexedSlices:
        engine, merge_rows = self._engine, announced.unique is not None
        if value.indices is not announced.indices:  # a compression sends other rows
            (announced,) = slices.announce(engine, [value.indices], merge_rows)
        if merge_rows:
            sum_dense = functools.partial(self._run_schedule, rank=rank)
            return slices.all_reduce(engine, value, announced, sum_dense)
        return slices.gather(engine, value, announced)

    def _bytes_sent(self, transport: Transport, rank: int) -> int | tf.Tensor:
        """Returns the bytes that the rank sends; by the engine's ring if a size is unknown."""
        world_size = self._engine.world_size
        total: int | tf.Tensor = 0
        for value in transport.sent:
            if isinstance(value, tf.IndexedSlices):
                total += tf.cast(slices.size_bytes(value), tf.float64) * (world_size - 1)
            elif (size := _item(value).size_bytes) is None:
                elements = tf.cast(tf.size(value), tf.float64)
                total += elements * (value.dtype.size * 2 * (world_size - 1) / world_size)
            else:
                total += cost(self._schedule(size), self._hosts, size).bytes_sent[rank]
        for part in (transport, *transport.parts):
            others = part.world_size - 1
            total += sum(map(_bytes, part.gathered)) * others
            total += sum(map(_bytes, part.exchanged)) * others // part.world_size
        for part in transport.parts:  # by the engine's ring
            sent = sum(_bytes(value) for value in part.sent)
            total += 2 * sent * (part.world_size - 1) // part.world_size
        for part in (transport, *transport.parts):
            for index, ways in part.choices:
                of_ways = [tf.cast(self._bytes_sent(way, rank), tf.float64) for way in ways]
                total += tf.gather(tf.stack(of_ways), index)
        return total

    def _run_schedule(self, tensor: tf.Tensor, rank: int) -> tf.Tensor:
        size_bytes = _item(tensor).size_bytes
        in_rows = self._rows_on_nccl(size_bytes) if size_bytes else None
        if in_rows is not None:
            return two_level_sums.sum_in_rows(self._engine, tensor, in_rows, rank)
        if size_bytes is None:
            # The places of chunks are not known before the step runs.
            schedule = Native().schedule(self._engine.world_size, self._hosts, 0)
        else:
            schedule = self._schedule(size_bytes)
        exchanges: list[Exchange] = []
        for phase in (*schedule.phases, None):
            if isinstance(phase, Exchange):
                exchanges.append(phase)
                continue
            if exchanges:
                tensor = self._engine.exchange(schedule, exchanges, tensor)
                exchanges = []
            group = None if phase is None else phase.group_of(rank)
            if group is not None:
                tensor = self._engine.all_reduce(tensor, group)
        return tensor

    def _rows_on_nccl(self, size_bytes: int) -> list[tuple[int, ...]] | None:
        """Returns the groups in whose parts NCCL sums a buffer; None: by a schedule."""
        if not self._engine.is_nccl:
            return None
        topology = self._topology
        if isinstance(topology, Auto):
            topology = topology.topology_for(size_bytes)
        return two_level_sums.rows_of(topology, self._engine.world_size, self._hosts)

    def _schedule(self, size_bytes: int) -> Schedule:
        return self._topology.schedule(self._engine.world_size, self._hosts, size_bytes)


def _bytes(tensor: tf.Tensor) -> int:
    """Returns the size of a tensor of known shape."""
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)


def _item(tensor: tf.Tensor) -> bucketing.Item:
    elements = tensor.shape.num_elements()
    size_bytes = None if elements is None else elements * tensor.dtype.size
    return bucketing.Item(tensor.dtype.name, size_bytes)
