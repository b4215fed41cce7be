"""The bytes of a bucket under each compression, as patterns of the links."""

import dataclasses
import functools
from collections.abc import Sequence

from tfdp.tools.prediction.cluster_model import ClusterModel
from tfdp.tools.prediction.workload import GradientTensor
from tfdp.topology import Links, Topology, seconds_of
from tfdp.topology.model import busy_seconds, candidates, nearly_fastest
from tfdp.topology.patterns import Pattern, Stride, pattern_of
from tfdp.topology.serialization import from_name

# Gradients of fewer numbers, and biases, travel whole; see `tfdp.compression.update_compression`.
_SMALLEST = 4096

# The bytes that stand for a buffer; patterns are scaled from it.
_UNIT_BYTES = 2**40


@dataclasses.dataclass(frozen=True)
class CompressionCost:
    """A compression as its bytes, and what it computes.

    Attributes:
      argument: The argument of the strategy; "" for none.
      kind: "whole", "cast" (fewer bytes, by the topology), "blocks" (an exchange of codes, and the
        gathering of their sums), "places" (all gather what each has chosen) or "factors" (two sums
        of thin matrices, by the topology).
      share: Of "cast", "blocks" and "places": the bytes that stand for one of the gradient's.
      rank: Of "factors": their columns.
      gigabytes_per_second: What a core compresses and restores, of gradients; see
        docs/compression.
      waits: Whether it begins when the backward pass has ended, as compressions of updates do.
      exact: Whether what is trained stays what one device trains, to rounding.

    >>> COMPRESSIONS["int8"].argument
    'compression=tfdp.compression.ErrorFeedback(tfdp.compression.Int8())'
    """

    argument: str
    kind: str
    share: float = 1.0
    rank: int = 0
    gigabytes_per_second: float | None = None
    waits: bool = False
    exact: bool = False

    @property
    def sums_parts(self) -> bool:
        """Whether the strategy takes it beside `shard`."""
        return self.kind in ("whole", "cast", "blocks")


def _feedback(inner: str) -> str:
    return f"compression=tfdp.compression.ErrorFeedback(tfdp.compression.{inner})"


#: The compressions that are planned with. The rates are of `python -m benchmarks compression-cost`.
COMPRESSIONS = {
    "none": CompressionCost("", "whole", exact=True),
    "bfloat16": CompressionCost(
        'compression=tfdp.compression.Cast("bfloat16")', "cast", 1 / 2, 0, 4.39
    ),
    "int8": CompressionCost(_feedback("Int8()"), "blocks", 1 / 4 + 1 / 256, 0, 0.59, True),
    "sign": CompressionCost(_feedback("Sign()"), "blocks", 1 / 32 + 1 / 1024, 0, 0.60, True),
    "topk": CompressionCost(_feedback("TopK(0.01)"), "places", 2 * 0.01, 0, 0.36, True),
    "powersgd": CompressionCost(_feedback("PowerSGD(4)"), "factors", 1.0, 4, 1.13, True),
}


@dataclasses.dataclass(frozen=True)
class Sum:
    """The time of one bucket's sum.

    Attributes:
      core_seconds: What compressing and restoring take.
      busy_seconds: How long the busiest link, or the busiest rank's core, is busy with its bytes.
      seconds: The time from its start to its end, without `core_seconds`.
      in_turn: Whether the next one waits for its end: the engine's own collectives run one after
        the other.

    >>> Sum(0.0, 1.0, 2.0).seconds
    2.0
    """

    core_seconds: float
    busy_seconds: float
    seconds: float
    in_turn: bool = False


def resolve(topology: str | Topology, cluster: ClusterModel, size_bytes: float) -> Topology:
    """Returns the topology of a buffer: for "auto" the one that the same model chooses.

    >>> from tfdp.topology import Links
    >>> resolve("auto", ClusterModel(2, 1, Links(0, 1e9, 0, 1e9)), 1024)
    Native()
    """
    if topology != "auto":
        return from_name(topology)
    timed = [
        (one, seconds_of(_pattern(one, cluster, size_bytes), size_bytes, cluster.links))
        for one in candidates(_places(cluster.hosts, cluster.ranks_of_host))
    ]
    return nearly_fastest(timed)[0]


def sum_of(
    tensors: Sequence[GradientTensor],
    cluster: ClusterModel,
    topology: str | Topology,
    compression: CompressionCost,
) -> Sum:
    """Returns the time of the sum of gradients that travel together.

    >>> from tfdp.topology import Links
    >>> cluster = ClusterModel(4, 1, Links(0, 25e6, 0, 25e6))
    >>> sum_of([GradientTensor((6_250_000,))], cluster, "ring", COMPRESSIONS["none"]).seconds
    1.5
    """
    if cluster.ranks == 1:
        return Sum(0.0, 0.0, 0.0)
    sent = _sent(tensors, cluster, topology, compression)
    found = [_timed(pattern, size, cluster.links) for pattern, size in sent]
    taken = float(sum(t.size_bytes for t in tensors if _takes(compression, t)))
    return _together(found, compression, taken, cluster)


def halves_of(
    tensors: Sequence[GradientTensor],
    cluster: ClusterModel,
    compression: CompressionCost | None = None,
) -> tuple[Sum, Sum]:
    """Returns the halves of a sum with `shard`: each rank gets its part, and all get the parts.

    A compression acts on the first one, the weights' new values are whole. What it computes is
    counted as for whole sums, which is the most. Of a table's gradient all ranks get the rows.

    >>> from tfdp.topology import Links
    >>> cluster = ClusterModel(4, 1, Links(0, 25e6, 0, 25e6))
    >>> [half.seconds for half in halves_of([GradientTensor((6_250_000,))], cluster)]
    [0.75, 0.75]
    >>> cast = COMPRESSIONS["bfloat16"]
    >>> [half.seconds for half in halves_of([GradientTensor((6_250_000,))], cluster, cast)]
    [0.375, 0.75]
    """
    compression = compression or COMPRESSIONS["none"]
    size = float(sum(tensor.size_bytes for tensor in tensors))
    rows = float(sum(tensor.row_bytes for tensor in tensors))  # then it travels alone
    gathered = _timed(_gather(cluster, size / cluster.ranks), size, cluster.links)
    if rows:
        return _timed(_gather(cluster, rows), rows, cluster.links), gathered
    taken = float(sum(tensor.size_bytes for tensor in tensors if _takes(compression, tensor)))
    sent = [each for each in (size - taken, compression.share * taken) if each]
    found = [_timed(_exchange(cluster, each / cluster.ranks), each, cluster.links) for each in sent]
    return _together(found, compression, taken, cluster), gathered


def _together(
    sums: Sequence[Sum], compression: CompressionCost, taken: float, cluster: ClusterModel
) -> Sum:
    """Returns what is sent one after the other, and the compression of so many bytes."""
    rate = compression.gigabytes_per_second
    return Sum(
        0.0 if rate is None else cluster.slowdown * taken / (1e9 * rate),
        sum(one.busy_seconds for one in sums),
        sum(one.seconds for one in sums),
        any(one.in_turn for one in sums),
    )


def _timed(pattern: Pattern, size: float, links: Links) -> Sum:
    return Sum(
        0.0,
        busy_seconds(pattern, size, links),
        seconds_of(pattern, size, links),
        any(stride.engine for stride in pattern.strides),
    )


def _takes(compression: CompressionCost, tensor: GradientTensor) -> bool:
    """Returns whether a gradient is compressed; see `AbstractLossyCompression.takes`."""
    if tensor.rows:
        return False
    if compression.kind in ("whole", "cast"):
        return compression.kind == "cast"
    large = tensor.elements >= _SMALLEST and len(tensor.shape) > 1
    if compression.kind != "factors":
        return large
    rows, columns = tensor.elements // tensor.shape[-1], tensor.shape[-1]
    return large and 2 * compression.rank * (rows + columns) <= rows * columns


def _sent(
    tensors: Sequence[GradientTensor],
    cluster: ClusterModel,
    topology: str | Topology,
    compression: CompressionCost,
) -> list[tuple[Pattern, float]]:
    """Returns the patterns of what is sent, one after the other, and the bytes of each buffer."""
    taken = [tensor for tensor in tensors if _takes(compression, tensor)]
    size = float(sum(tensor.size_bytes for tensor in taken))
    summed = [tensor for tensor in tensors if not tensor.rows]
    whole = float(sum(tensor.size_bytes for tensor in summed)) - size
    sums = [whole] if whole else []
    if compression.kind == "cast":
        sums = [whole + compression.share * size] if summed else []
    elif compression.kind == "factors" and taken:
        right = sum(t.shape[-1] for t in taken)
        left = sum(t.elements // t.shape[-1] for t in taken)
        sums += [4.0 * compression.rank * left, 4.0 * compression.rank * right]
    found = [(_pattern(topology, cluster, size), size) for size in sums]
    rows = float(sum(tensor.row_bytes for tensor in tensors))
    if rows:
        found.append((_gather(cluster, rows), rows))
    code = compression.share * size
    if compression.kind == "blocks" and taken:
        part = code / cluster.ranks
        found += [(_exchange(cluster, part), code), (_gather(cluster, part), code)]
    elif compression.kind == "places" and taken:
        found.append((_gather(cluster, code), code))
    return found


@functools.lru_cache(4096)  # buckets of equal sizes are many
def _pattern(topology: str | Topology, cluster: ClusterModel, size: float) -> Pattern:
    unit = _unit(resolve(topology, cluster, size), cluster.hosts, cluster.ranks_of_host)
    return unit.scaled(size / _UNIT_BYTES)


@functools.cache
def _unit(topology: Topology, hosts: int, ranks_of_host: int) -> Pattern:
    """Returns what is sent for a buffer of :data:`_UNIT_BYTES`, counted from its transfers."""
    places = _places(hosts, ranks_of_host)
    schedule = topology.schedule(len(places), places, _UNIT_BYTES)
    return pattern_of(schedule, places, _UNIT_BYTES)


def _places(hosts: int, ranks_of_host: int) -> list[int]:
    return [host for host in range(hosts) for _ in range(ranks_of_host)]


def _exchange(cluster: ClusterModel, part: float) -> Pattern:
    """Each rank sends each other a part, in one step."""
    count, each = cluster.ranks, cluster.ranks_of_host
    inside, between = part * (each - 1), part * each * (count - each)
    stride = Stride(1, inside, between, 2 * part * (count - 1), True, each > 1, cluster.hosts > 1)
    return Pattern((stride,), 1, inside, between)


def _gather(cluster: ClusterModel, part: float) -> Pattern:
    """Each rank's part goes around a ring."""
    times, each = cluster.ranks - 1, cluster.ranks_of_host
    inside, between = part * (each > 1), part * (cluster.hosts > 1)
    stride = Stride(times, inside, between, 2 * part, True, each > 1, cluster.hosts > 1)
    return Pattern((stride,), 1, times * inside, times * between)
