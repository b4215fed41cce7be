"""The checks that move bytes: a round trip between the processes, and all-reduces."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.communication.collectives import runtime
from tfdp.communication.replicas import ProcessGroup, processes_of
from tfdp.tools.doctor.rank_facts import Measurement

_ROUND_TRIPS = 20
_SMALL_RUNS = 20
_LARGE_RUNS = 5
_PERIOD = 251  # of the summed numbers; their sums are exact in float32


def measure(strategy: Any, large_elements: int, timeout_seconds: float) -> Measurement:
    """Runs all checks; every rank of the cluster must call it.

    Cost: 20 round trips, 22 small all-reduces and 7 large ones of float32.

    Args:
      strategy: A `tfdp.DataParallelStrategy`.
      large_elements: The count of numbers in the large all-reduce.
      timeout_seconds: The limit of all checks together in one process; in a cluster the strategy's
        own limit holds.

    Raises:
      tf.errors.OpError: An all-reduce failed, or did not end in time.
      RuntimeError: Another rank was lost, or is late.
    """
    processes = processes_of(strategy)
    alone = processes.world_size == 1
    round_trip = None if alone else _round_trip(processes)
    if strategy.num_replicas_in_sync == 1:
        return Measurement(round_trip)
    limit = threading.Timer(
        timeout_seconds, runtime.abort, [f"an all-reduce did not end in {timeout_seconds:g} s"]
    )
    limit.daemon = True
    if alone:
        limit.start()
    try:
        small, small_right = _all_reduce(strategy, 1, _SMALL_RUNS)
        large, large_right = _all_reduce(strategy, large_elements, _LARGE_RUNS)
    finally:
        limit.cancel()
    return Measurement(round_trip, small, large, small_right and large_right)


def _round_trip(processes: ProcessGroup) -> float:
    return _median_seconds(lambda: processes.barrier("a round trip"), _ROUND_TRIPS)


def _all_reduce(strategy: Any, elements: int, runs: int) -> tuple[float, bool]:
    """Returns the seconds of one all-reduce over all replicas, and whether the sums are right.

    Each replica has other numbers, and neighbouring numbers differ, so that pieces which arrive at
    a wrong place show.
    """
    replicas = strategy.num_replicas_in_sync
    ramp = np.arange(elements) % _PERIOD
    own = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(ramp + context.replica_id_in_sync_group, tf.float32)
    )

    @tf.function
    def summed(own: Any) -> Any:
        def replica(values: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce("SUM", values)

        return strategy.run(replica, args=(own,))

    def run() -> Any:
        results = strategy.experimental_local_results(summed(own))
        for result in results:
            result[:1].numpy()  # a GPU's work has ended only when a part of the result is read
        return results

    results = run()
    run()
    processes_of(strategy).barrier(f"an all-reduce of {elements} numbers")
    seconds = _median_seconds(run, runs)
    expected = replicas * ramp + replicas * (replicas - 1) // 2
    return seconds, all(np.array_equal(result.numpy(), expected) for result in results)


def _median_seconds(action: Callable[[], Any], runs: int) -> float:
    taken = []
    action()
    for _ in range(runs):
        begun = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)
