"""One rank of `benchmarks sums`: the engines beside tfdp's, and the bytes of its host's link.

tfdp run -n 2 -- python -m benchmarks.sums_rank PLAN.json
"""

from collections.abc import Callable

import numpy as np

from benchmarks import hosts, on_host
from tfdp.cluster import rank_status
from tfdp.tools.bench import bench_rank
from tfdp.tools.bench.bench_rank import Engine, RankPlan


def _stock(plan: RankPlan, rank: int) -> Engine:
    from tfdp.tools.bench.fit_worker import multi_worker_strategy

    rank_status.tell(made=True)
    strategy = multi_worker_strategy()
    return lambda side, elements: bench_rank.sum_of_strategy(strategy, elements)


def _gloo(plan: RankPlan, rank: int) -> Engine:
    import torch
    from torch import distributed

    from tfdp.tools.bench.ddp_worker import join_torch

    join_torch(hosts.INTERFACE if on_host.is_on_host() else "lo")

    def make(side: str, elements: int) -> Callable[[], np.ndarray]:
        own = torch.full((elements,), float(rank + 1))

        def run() -> np.ndarray:
            total = own.clone()
            distributed.all_reduce(total)
            return total.numpy()

        return run

    return make


def _mpi4py(plan: RankPlan, rank: int) -> Engine:
    from mpi4py import MPI

    rank_status.tell(made=True)

    def make(side: str, elements: int) -> Callable[[], np.ndarray]:
        own = np.full(elements, rank + 1, np.float32)
        total = np.empty_like(own)

        def run() -> np.ndarray:
            MPI.COMM_WORLD.Allreduce(own, total)
            return total

        return run

    return make


def _graph(plan: RankPlan, rank: int) -> Engine:
    """Calls mpi4py from a graph: the least that a sum costs there, without order or deadlines."""
    import tensorflow as tf
    from mpi4py import MPI

    rank_status.tell(made=True)

    def sum_(own: np.ndarray) -> np.ndarray:
        total = np.empty_like(own)
        MPI.COMM_WORLD.Allreduce(own, total)
        return total

    def make(side: str, elements: int) -> Callable[[], np.ndarray]:
        own = tf.fill([elements], float(rank + 1))
        step = tf.function(lambda: tf.numpy_function(sum_, [own], tf.float32))
        return lambda: np.asarray(step())

    return make


if __name__ == "__main__":
    bench_rank.main(
        {"stock": _stock, "gloo": _gloo, "mpi4py": _mpi4py, "graph": _graph},
        on_host.bytes_sent if on_host.is_on_host() else None,
    )
