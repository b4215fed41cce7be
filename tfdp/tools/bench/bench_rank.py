"""One rank of one engine, which times all-reduces and writes the times.

    tfdp run -n 2 -- python -m tfdp.tools.bench.bench_rank PLAN.json

`tfdp bench` starts fresh processes for each engine and round. Where there are hosts,
`tfdp.tools.bench.on_host` brings each rank to its own.
"""

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdp.cluster import run_status
from tfdp.tools.bench import hosts, on_host, other_engines


@dataclasses.dataclass(frozen=True)
class RankPlan:
    """The measurements of the ranks of one engine.

    Args:
      engine: An engine of tfdp, `"tensorflow"` or `"mpi"`; or `"stock"`, `"gloo"` (PyTorch's),
        `"mpi4py"`, or `"graph"`, which is mpi4py called by a graph.
      sides: The sides to measure: topologies, or the engine itself.
      sizes: The sizes of the float32 buffers, in bytes.
      repeats: The number of timed all-reduces for each side and size.
      folder: The folder where rank `r` writes `r.json`.
      between_hosts: Whether the ranks are on hosts that `tfdp.tools.bench.hosts` has made.
    """

    engine: str
    sides: tuple[str, ...]
    sizes: tuple[int, ...]
    repeats: int
    folder: str
    between_hosts: bool


def measure(plan: RankPlan, rank: int) -> list[dict[str, Any]]:
    """Times every side and size, the sides in turn.

    Returns:
      For each side and size `seconds`, a list of the times from the call until the sum is known
      in this process' memory, where the ranks begin within a tiny all-reduce's time of each other;
      `link_bytes`, what the rank's host sent over its link meanwhile, none on loopback; and
      `right`, whether all sums were.
    """
    others = {"stock": _stock, "gloo": _gloo, "mpi4py": _mpi4py, "graph": _graph}
    engine = others.get(plan.engine, _tfdp)(plan, rank)
    results = []
    world_size = _world_size()
    for size in plan.sizes:
        runs = {side: engine(side, size // 4) for side in plan.sides}
        right = {
            side: all(_is_right(run(), world_size) for _ in range(2)) for side, run in runs.items()
        }
        seconds: dict[str, list[float]] = {side: [] for side in plan.sides}
        sent: dict[str, list[int]] = {side: [] for side in plan.sides}
        barrier = engine(plan.sides[0], 1)
        for _ in range(plan.repeats):
            for side, run in runs.items():
                barrier()
                before = _link_bytes(plan)
                began = time.perf_counter()
                total = run()
                seconds[side].append(time.perf_counter() - began)
                sent[side] += [
                    now - then for now, then in zip(_link_bytes(plan), before, strict=True)
                ]
                right[side] &= _is_right(total, world_size)
        results += [
            {
                "side": side,
                "size_bytes": size,
                "seconds": seconds[side],
                "link_bytes": sent[side],
                "right": right[side],
            }
            for side in plan.sides
        ]
    return results


def _link_bytes(plan: RankPlan) -> list[int]:
    """Returns the bytes that this rank's host has sent over its link so far; none on loopback."""
    return [on_host.bytes_sent()] if plan.between_hosts else []


def _is_right(total: np.ndarray, world_size: int) -> bool:
    """Returns whether a sum over ranks, each with its number from 1 on, is right at some places."""
    found = total[[0, len(total) // 2, -1]]
    return bool((found == world_size * (world_size + 1) / 2).all())


def _world_size() -> int:
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])


# Makes a function that returns the sum over the ranks of arrays of so many elements.
Engine = Callable[[str, int], Callable[[], np.ndarray]]


def _tfdp(plan: RankPlan, rank: int) -> Engine:
    import tfdp

    strategies = {
        side: tfdp.DataParallelStrategy(topology=side, engine=plan.engine) for side in plan.sides
    }
    return lambda side, elements: _of_strategy(strategies[side], elements, rank)


def _stock(plan: RankPlan, rank: int) -> Engine:

    run_status.tell(made=True)
    strategy = other_engines.multi_worker_strategy()
    return lambda side, elements: _of_strategy(strategy, elements, rank)


def _of_strategy(strategy: Any, elements: int, rank: int) -> Callable[[], np.ndarray]:
    import tensorflow as tf

    own = strategy.experimental_distribute_values_from_function(
        lambda context: tf.fill([elements], float(context.replica_id_in_sync_group + 1))
    )

    @tf.function
    def step() -> Any:
        def sum_(value: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

        return strategy.run(sum_, args=(own,))

    return lambda: np.asarray(strategy.experimental_local_results(step())[0])


def _gloo(plan: RankPlan, rank: int) -> Engine:
    import torch
    from torch import distributed

    other_engines.join_torch(hosts.INTERFACE if plan.between_hosts else "lo")

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

    run_status.tell(made=True)

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

    run_status.tell(made=True)

    def sum_(own: np.ndarray) -> np.ndarray:
        total = np.empty_like(own)
        MPI.COMM_WORLD.Allreduce(own, total)
        return total

    def make(side: str, elements: int) -> Callable[[], np.ndarray]:
        own = tf.fill([elements], float(rank + 1))
        step = tf.function(lambda: tf.numpy_function(sum_, [own], tf.float32))
        return lambda: np.asarray(step())

    return make


def main() -> None:
    """Reads the plan, measures, and writes the results."""
    (path,) = sys.argv[1:]
    content = json.loads(pathlib.Path(path).read_text())
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    plan = RankPlan(**lists)
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    (pathlib.Path(plan.folder) / f"{rank}.json").write_text(json.dumps(measure(plan, rank)))


if __name__ == "__main__":
    main()
