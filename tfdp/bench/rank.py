"""One rank of one engine, which times all-reduces and writes the times.

    tfdp run -n 2 -- python -m tfdp.bench.rank PLAN.json

`tfdp bench` starts fresh processes for each engine and round. Where there are hosts,
`tfdp.bench.on_host` brings each rank to its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from tfdp.bench import hosts, on_host, other_engines
from tfdp.cluster import run_status


@dataclasses.dataclass(frozen=True)
class Plan:
    """The measurements of the ranks of one engine.

    Args:
      engine: An engine of tfdp, `"tensorflow"` or `"mpi"`; or `"stock"`, `"gloo"` (PyTorch's), or
        `"mpi4py"`.
      sides: The sides to measure: topologies, or the engine itself.
      sizes: The sizes of the float32 buffers, in bytes.
      repeats: The number of timed all-reduces for each side and size.
      folder: The folder where rank `r` writes `r.json`.
      between_hosts: Whether the ranks are on hosts that `tfdp.bench.hosts` has made.
    """

    engine: str
    sides: tuple[str, ...]
    sizes: tuple[int, ...]
    repeats: int
    folder: str
    between_hosts: bool


def measure(plan: Plan, rank: int) -> list[dict[str, Any]]:
    """Times every side and size, the sides in turn.

    Returns:
      For each side and size `seconds`, a list of the times from the call until the sum is known
      here, where the ranks begin within a tiny all-reduce's time of each other; `link_bytes`, what
      the rank's host sent over its link meanwhile, none on loopback; and `right`, whether all sums
      were.
    """
    others = {"stock": _stock, "gloo": _gloo, "mpi4py": _mpi4py}
    engine = others.get(plan.engine, _tfdp)(plan, rank)
    results = []
    for size in plan.sizes:
        runs = {side: engine(side, size // 4) for side in plan.sides}
        right = {side: all(run() for _ in range(2)) for side, run in runs.items()}
        seconds: dict[str, list[float]] = {side: [] for side in plan.sides}
        sent: dict[str, list[int]] = {side: [] for side in plan.sides}
        barrier = engine(plan.sides[0], 1)
        for _ in range(plan.repeats):
            for side, run in runs.items():
                barrier()
                before = _link_bytes(plan)
                began = time.perf_counter()
                right[side] &= run()
                seconds[side].append(time.perf_counter() - began)
                sent[side] += [
                    now - then for now, then in zip(_link_bytes(plan), before, strict=True)
                ]
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


def _link_bytes(plan: Plan) -> list[int]:
    """Returns the bytes that this rank's host has sent over its link so far; none on loopback."""
    return [on_host.bytes_sent()] if plan.between_hosts else []


# Makes a function that sums a count of numbers over the ranks and says whether the sum is right.
Engine = Callable[[str, int], Callable[[], bool]]


def _tfdp(plan: Plan, rank: int) -> Engine:
    import tfdp

    strategies = {
        side: tfdp.DataParallelStrategy(topology=side, engine=plan.engine) for side in plan.sides
    }
    return lambda side, elements: _of_strategy(strategies[side], elements, rank)


def _stock(plan: Plan, rank: int) -> Engine:

    run_status.mark_strategy_made()
    strategy = other_engines.multi_worker_strategy()
    return lambda side, elements: _of_strategy(strategy, elements, rank)


def _of_strategy(strategy: Any, elements: int, rank: int) -> Callable[[], bool]:
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync
    own = strategy.experimental_distribute_values_from_function(
        lambda context: tf.fill([elements], float(context.replica_id_in_sync_group + 1))
    )

    @tf.function
    def step() -> Any:
        def sum_(value: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

        return strategy.run(sum_, args=(own,))

    def run() -> bool:
        total = strategy.experimental_local_results(step())[0]
        ends = tf.gather(total, [0, elements // 2, elements - 1]).numpy()
        return bool((ends == replicas * (replicas + 1) / 2).all())

    return run


def _gloo(plan: Plan, rank: int) -> Engine:
    import torch
    from torch import distributed

    _, world_size = other_engines.join_gloo(hosts.INTERFACE if plan.between_hosts else "lo")

    def make(side: str, elements: int) -> Callable[[], bool]:
        own = torch.full((elements,), float(rank + 1))

        def run() -> bool:
            total = own.clone()
            distributed.all_reduce(total)
            return bool(total[0] == world_size * (world_size + 1) / 2 == total[-1])

        return run

    return make


def _mpi4py(plan: Plan, rank: int) -> Engine:
    import numpy as np
    from mpi4py import MPI

    run_status.mark_strategy_made()
    world = MPI.COMM_WORLD

    def make(side: str, elements: int) -> Callable[[], bool]:
        own = np.full(elements, rank + 1, np.float32)
        total = np.empty_like(own)

        def run() -> bool:
            world.Allreduce(own, total)
            return bool(total[0] == world.size * (world.size + 1) / 2 == total[-1])

        return run

    return make


def main() -> None:
    """Reads the plan, measures, and writes the results."""
    (path,) = sys.argv[1:]
    content = json.loads(pathlib.Path(path).read_text())
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    plan = Plan(**lists)
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    (pathlib.Path(plan.folder) / f"{rank}.json").write_text(json.dumps(measure(plan, rank)))


if __name__ == "__main__":
    main()
