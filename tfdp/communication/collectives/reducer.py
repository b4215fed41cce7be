"""Sums of lists of tensors over the replicas: in buckets, by a topology's schedule for each."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdp.base import bucketing, recording
from tfdp.communication.collectives import indexed_slices, payloads, two_level_sums
from tfdp.communication.collectives.payloads import (
    Compress,
    CompressBucket,
    Transport,
    packed,
    unpacked,
)
from tfdp.communication.engines import Engine
from tfdp.topology import Auto, Exchange, Native, Schedule, Topology, Transfer
from tfdp.topology.costs import cost
from tfdp.topology.schedule import ranks_of_hosts


class Reducer:
    """Sums lists of tensors over the replicas, as the strategy does.

    Args:
      engine: Runs the primitives.
      topology: Gives the schedule for each bucket.
      hosts: For each rank the index of its host.
      bucket_bytes: The most bytes that travel together; tensors up to half this size do.
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
        self._counted: tuple[list[int | None], tf.Graph] | None = None
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
        values: Sequence[payloads.Value],
        rank: int,
        merge_rows: bool = False,
        compress: Compress | None = None,
    ) -> list[payloads.Value]:
        """Returns the sum of each value over all replicas, the same bits on each of them.

        The sum of slices holds every replica's rows in the order of ranks, which is what one device
        given the global batch computes. Keras' Adam squares each row, so merged rows would train
        otherwise. Gathering sends n times the rows of the replica with the most.

        Args:
          values: Dense tensors, or IndexedSlices, of numbers.
          rank: The caller's rank.
          merge_rows: Whether slices may be summed by row before they travel; see
            `indexed_slices.all_reduce`.
          compress: Sums each bucket, and each value that is slices; None: they are sent as they
            are.
        """
        compress = compress or (lambda value, transport: transport.sum(value))
        results: list[payloads.Value] = list(values)
        tables = [index for index, each in enumerate(values) if isinstance(each, tf.IndexedSlices)]
        indices = [values[index].indices for index in tables]
        announced = indexed_slices.announce(self._engine, indices, merge_rows) if tables else []
        sparse: dict[int, Transport] = {}
        for index, rows_ in zip(tables, announced, strict=True):
            sum_ = functools.partial(self._sum_slices, announced=rows_, rank=rank)
            sparse[index] = Transport(sum_)
            results[index] = compress(values[index], sparse[index])
        places = [index for index in range(len(values)) if index not in sparse]
        dense = [tf.convert_to_tensor(values[index]) for index in places]

        def sum_bucket(members: Sequence[int], transport: Transport) -> list[tf.Tensor]:
            tensors = [dense[member] for member in members]
            return unpacked(compress(packed(tensors), transport), tensors)

        sums = self._by_bucket(sum_bucket, dense, list(map(_item, dense)), rank)
        for index, tensor in zip(places, sums, strict=True):
            results[index] = tensor
        for index, transport in sparse.items():
            inputs, rows = [values[index].values], [results[index].values]
            self.tell(inputs, rows, functools.partial(self._bytes_sent, transport, rank))
        return results

    def sum_bucket(self, tensors: Sequence[tf.Tensor], rank: int) -> list[tf.Tensor]:
        """Returns the sums of tensors of one dtype and of known shapes, or of one, as one bucket.

        Nobody is told of it.
        """
        return unpacked(self.transport(rank).sum(packed(tensors)), tensors)

    def bytes_sent(self, size_bytes: int, rank: int) -> int:
        """Returns the bytes that a rank sends in the sum of a buffer."""
        return cost(self._schedule(size_bytes), self._hosts, size_bytes).bytes_sent[rank]

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
        sized = zip(tensors, payload_bytes, strict=True)
        items = [bucketing.Item(tensor.dtype.name, size) for tensor, size in sized]
        return self._by_bucket(compress, tensors, items, rank)

    def _by_bucket(
        self,
        sum_: CompressBucket,
        tensors: Sequence[tf.Tensor],
        items: Sequence[bucketing.Item],
        rank: int,
    ) -> list[tf.Tensor]:
        results = list(tensors)
        for members in self._assigned(items):
            transport = self.transport(rank)
            summed = sum_(members, transport)
            for index, tensor in zip(members, summed, strict=True):
                results[index] = tensor
            sent = functools.partial(self._bytes_sent, transport, rank)
            self.tell([tensors[index] for index in members], summed, sent)
        return results

    def tell(
        self,
        inputs: Sequence[tf.Tensor],
        sums: Sequence[tf.Tensor],
        sent: Callable[[], int | tf.Tensor],
    ) -> None:
        """Tells of a bucket what it has sent: the step's recording, and who counts."""
        sent = functools.cache(sent)
        tap = recording.current()
        if tap is not None:
            tap.bucket(inputs, sums, sent)
        if self._counted is not None:
            counts, graph = self._counted
            is_always = isinstance(sent(), int) and tf.compat.v1.get_default_graph() is graph
            counts.append(sent() if is_always else None)

    @contextlib.contextmanager
    def counting_bytes(self) -> Iterator[list[int | None]]:
        """Counts the bytes of the buckets that are told of within the context, while it is traced.

        Yields:
          A list with the bytes of each bucket; None where a step may send others: those of unknown
          sizes, and in a branch or a loop.
        """
        before, found = self._counted, list[int | None]()
        self._counted = found, tf.compat.v1.get_default_graph()
        try:
            yield found
        finally:
            self._counted = before

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
        for members in self._assigned(list(map(_item, tensors))):
            own = [tensors[index] for index in members]
            bucket = payloads.as_summed(packed(own))
            total = self._engine.exchange(Schedule((exchange,)), [exchange], bucket)
            sums = unpacked(payloads.as_before(total, own[0].dtype), own)
            for index, tensor in zip(members, sums, strict=True):
                results[index] = tensor
            sent = functools.partial(int, _bytes(bucket) * len(distances))
            self.tell(own, sums, sent)
        return results

    def broadcast(self, value: tf.Tensor, rank: int) -> tf.Tensor:
        """Returns rank 0's `value` on every replica, for numbers and booleans."""
        as_number = tf.cast(value, tf.int32) if value.dtype.is_bool else value
        own = as_number if rank == 0 else tf.zeros_like(as_number)
        (summed,) = self.all_reduce([own], rank)
        return tf.cast(summed, value.dtype)

    def _assigned(self, items: Sequence[bucketing.Item]) -> list[list[int]]:
        """Returns the positions of the tensors of each bucket."""
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

    def transport(self, rank: int, group: tuple[int, ...] = ()) -> Transport:
        """Returns what sends on behalf of a rank between the ranks of a group; (): between all."""
        engine = self._engine
        group = group or tuple(range(engine.world_size))
        is_all = len(group) == engine.world_size  # whose topology it is

        def levels() -> tuple[Transport, Transport]:
            within, between = self.levels(rank)
            return self.transport(rank, within), self.transport(rank, between)

        return Transport(
            functools.partial(self._run_schedule, rank=rank)
            if is_all
            else functools.partial(engine.all_reduce, group=group),
            lambda tensor: engine.all_gather(tensor[tf.newaxis], group),
            functools.partial(engine.all_to_all, group=group),
            group.index(rank),
            len(group),
            levels,
            functools.partial(engine.reduce_scatter, group=group),
        )

    def _sum_slices(
        self, value: tf.IndexedSlices, announced: indexed_slices.Announced, rank: int
    ) -> tf.IndexedSlices:
        engine, merge_rows = self._engine, announced.unique is not None
        if value.indices is not announced.indices:  # a compression sends other rows
            (announced,) = indexed_slices.announce(engine, [value.indices], merge_rows)
        if merge_rows:
            sum_dense = functools.partial(self._run_schedule, rank=rank)
            return indexed_slices.all_reduce(engine, value, announced, sum_dense)
        return indexed_slices.gather(engine, value, announced)

    def _bytes_sent(self, transport: Transport, rank: int) -> int | tf.Tensor:
        """Returns the bytes that the rank sends; by the engine's ring if a size is unknown."""
        world_size = self._engine.world_size
        total: int | tf.Tensor = 0
        for value in transport.sent:
            if isinstance(value, tf.IndexedSlices):
                total += tf.cast(indexed_slices.size_bytes(value), tf.float64) * (world_size - 1)
            elif (size := _item(value).size_bytes) is None:
                elements = tf.cast(tf.size(value), tf.float64)
                total += elements * (value.dtype.size * 2 * (world_size - 1) / world_size)
            else:
                total += self.bytes_sent(size, rank)
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
        if size_bytes is None or self.is_native:
            # Of an unknown size the places of chunks are not known before the step runs.
            return self._engine.all_reduce(tensor, tuple(range(self._engine.world_size)))
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
