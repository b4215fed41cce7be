"""Measurements of the links between ranks, for the cost model of the topologies."""

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.cluster.control_channel import Post
from tfdp.communication.engines import Engine
from tfdp.topology import Exchange, Links, Schedule, Transfer

# The chain and the burst are short, for building their graphs costs more than running them.
_CHAIN = 6
_BURST = 8
_BYTES_INSIDE = 4 * 2**20
_BYTES_BETWEEN = 2**20  # 42 ms at 200 Mbit/s
_BYTES_SUMMED = 64 * 2**20
_SMALL_RUNS = 3
_LARGE_RUNS = 2
_SHORTEST_SECONDS = 1e-6


class Probe:
    """Times transfers between neighbours, all at the same time, on every rank.

    Args:
      run: Calls a function without arguments in every local replica, in a graph.
      engine: The collectives between all ranks.
      hosts: For each rank the index of its host.
      barrier: Waits until all processes have come to it.
      all_gather: Gives what each process calls it with, in the order of ranks.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], tf.Tensor]], tf.distribute.DistributedValues | tf.Tensor],
        engine: Engine,
        hosts: Sequence[int],
        barrier: Callable[[str], None],
        all_gather: Callable[[str, list[float]], list[Post]],
    ) -> None:
        self._run = run
        self._engine = engine
        self._hosts = hosts
        self._barrier = barrier
        self._all_gather = all_gather

    def links(self) -> Links:
        """Returns the links' latencies and rates: the slowest of each kind, the same on all ranks.

        Cost: some 60 small transfers per rank, 3 x 4 MiB to a neighbour on its host, and 3 x 1 MiB
        from each host to the next: about a second on loopback.
        """
        inside, between = _inside(self._hosts), _between(self._hosts)
        measured = {
            kind: self._latency_and_rate(pairs, size_bytes)
            for kind, pairs, size_bytes in (
                ("inside", inside, _BYTES_INSIDE),
                ("between", between, _BYTES_BETWEEN),
            )
            if pairs
        }
        latency_inside, rate_inside = measured.get("inside", measured.get("between", (0.0, 1e12)))
        latency_between, rate_between = measured.get("between", (latency_inside, rate_inside))
        pairs = inside or between
        operation, once = self._operation_seconds(pairs)
        # One exchange costs the call of a function, the link's latency, a send and a receive, so
        # `call` is what the others leave of it. What an all-reduce costs beyond the call and its
        # one operation is the engine's.
        latency = latency_inside if inside else latency_between
        call = max(once - latency - 2 * operation, 0.0)
        engine = self._seconds(self._native, _BURST, _SMALL_RUNS) - call - operation
        return Links(
            latency_seconds_inside=latency_inside,
            bytes_per_second_inside=rate_inside,
            latency_seconds_between=latency_between,
            bytes_per_second_between=rate_between,
            operation_seconds=operation,
            engine_step_seconds=max(engine, 0.0) / (2 * (len(self._hosts) - 1)),
        )

    def links_of_sums(self) -> Links:
        """Returns links by which the engine's own sums take as long as they do; see `links`.

        For NCCL, which is given no transfers. Cost: 4 sums of 32 bytes, and 3 of 64 MiB.
        """
        steps = 2 * (len(self._hosts) - 1)
        small = self._seconds(self._native, _BURST, _SMALL_RUNS)
        large = self._seconds(self._native, _BYTES_SUMMED // 4, _LARGE_RUNS)
        sent = steps / len(self._hosts) * _BYTES_SUMMED
        rate = sent / max(large - small, _SHORTEST_SECONDS)
        latency = small / steps
        return Links(latency, rate, latency, rate, engine_step_seconds=latency)

    def _native(self, own: tf.Tensor) -> tf.Tensor:
        return self._engine.all_reduce(own, tuple(range(len(self._hosts))))

    def _transfers(self, schedule: Schedule) -> Callable[[tf.Tensor], tf.Tensor]:
        return lambda own: self._engine.exchange(schedule, schedule.exchanges(), own)

    def _latency_and_rate(
        self, pairs: list[tuple[int, int]], size_bytes: int
    ) -> tuple[float, float]:
        once = self._seconds(self._transfers(_chain(pairs, 1)), 1, _SMALL_RUNS)
        often = self._seconds(self._transfers(_chain(pairs, _CHAIN + 1)), 1, _SMALL_RUNS)
        large = self._seconds(self._transfers(_chain(pairs, 1)), size_bytes // 4, _LARGE_RUNS)
        return (
            max(often - once, 0.0) / _CHAIN,
            size_bytes / max(large - once, _SHORTEST_SECONDS),
        )

    def _operation_seconds(self, pairs: list[tuple[int, int]]) -> tuple[float, float]:
        """Returns what an operation adds, and the time of one exchange with a neighbour."""
        once = self._seconds(self._transfers(_chain(pairs, 1)), _BURST, _SMALL_RUNS)
        burst = self._seconds(self._transfers(_burst(pairs)), _BURST, _SMALL_RUNS)
        # Each transfer of the burst is a send and a receive.
        return max(burst - once, 0.0) / (2 * (_BURST - 1)), once

    def _seconds(
        self, collective: Callable[[tf.Tensor], tf.Tensor], elements: int, runs: int
    ) -> float:
        """Returns the seconds of the slowest rank, in the fastest of `runs`."""

        @tf.autograph.experimental.do_not_convert
        def replica() -> tf.Tensor:
            return tf.reduce_max(collective(tf.zeros([elements])))

        step = tf.function(lambda: self._run(replica), autograph=False)
        taken = []
        for _ in range(runs + 1):
            self._barrier("a measurement of the links")
            began = time.perf_counter()
            for result in tf.nest.flatten(step(), expand_composites=True):
                result.numpy()
            taken.append(time.perf_counter() - began)
        timed = taken[1:]  # the first run traces the function
        posts = self._all_gather("what the links took", timed)
        return min(max(of_ranks) for of_ranks in zip(*(p.value for p in posts), strict=True))


def _inside(hosts: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs each rank with the next one on its host, around each host."""
    pairs = []
    for host in sorted(set(hosts)):
        ranks = [rank for rank, own in enumerate(hosts) if own == host]
        if len(ranks) > 1:
            pairs += list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    return pairs


def _between(hosts: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs each host's first rank with the next host's, around all hosts."""
    firsts = [list(hosts).index(host) for host in sorted(set(hosts))]
    if len(firsts) == 1:
        return []
    return list(zip(firsts, [*firsts[1:], firsts[0]], strict=True))


def _chain(pairs: list[tuple[int, int]], length: int) -> Schedule:
    """Returns a schedule that sends everything to the next rank, `length` times."""
    phase = Exchange(tuple(Transfer(*pair, range(1), reduce=False) for pair in pairs))
    return Schedule((phase,) * length)


def _burst(pairs: list[tuple[int, int]]) -> Schedule:
    """Returns a schedule that sends many small pieces to the next rank at once."""
    together = [
        Transfer(*pair, range(chunk, chunk + 1), reduce=False)
        for pair in pairs
        for chunk in range(_BURST)
    ]
    return Schedule((Exchange(tuple(together)),), chunks=_BURST)
