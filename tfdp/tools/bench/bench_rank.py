"""One rank of one engine, which times all-reduces and writes the times.

    tfdp run -n 2 -- python -m tfdp.tools.bench.bench_rank PLAN.json

`tfdp bench` starts fresh processes for each engine and round.
"""

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np


@dataclasses.dataclass(frozen=True)
class RankPlan:
    """The measurements of the ranks of one engine.

    Args:
      engine: An engine of tfdp, `"tensorflow"` or `"mpi"`, or another that the rank is given.
      sides: The sides to measure: topologies, or the engine itself.
      sizes: The sizes of the float32 buffers, in bytes.
      repeats: The number of timed all-reduces for each side and size.
      folder: The folder where rank `r` writes `r.json`.
    """

    engine: str
    sides: tuple[str, ...]
    sizes: tuple[int, ...]
    repeats: int
    folder: str


# Makes a function that returns the sum over the ranks of arrays of so many elements.
Engine: TypeAlias = Callable[[str, int], Callable[[], np.ndarray]]


def measure(
    plan: RankPlan, engine: Engine, link_bytes: Callable[[], int] | None = None
) -> list[dict[str, Any]]:
    """Times every side and size, the sides in turn.

    Args:
      plan: The measurements.
      engine: Makes the sum of a side and a number of elements.
      link_bytes: Returns what the rank's host has sent over its link so far, if it has one.

    Returns:
      For each side and size `seconds`, a list of the times from the call until the sum is known
      in this process' memory, where the ranks begin within a tiny all-reduce's time of each other;
      `link_bytes`, what the rank's host sent over its link meanwhile, if it has one; and `right`,
      whether all sums were.
    """
    results: list[dict[str, Any]] = []
    world_size = _world_size()
    for size in plan.sizes:
        runs = {side: engine(side, size // 4) for side in plan.sides}
        found: dict[str, dict[str, Any]] = {
            side: {
                "side": side,
                "size_bytes": size,
                "seconds": [],
                "link_bytes": [],
                "right": all(_is_right(run(), world_size) for _ in range(2)),
            }
            for side, run in runs.items()
        }
        barrier = engine(plan.sides[0], 1)
        for _ in range(plan.repeats):
            for side, run in runs.items():
                barrier()
                before = link_bytes() if link_bytes else 0
                began = time.perf_counter()
                total = run()
                found[side]["seconds"].append(time.perf_counter() - began)
                if link_bytes:
                    found[side]["link_bytes"].append(link_bytes() - before)
                found[side]["right"] &= _is_right(total, world_size)
        results += found.values()
    return results


def _is_right(total: np.ndarray, world_size: int) -> bool:
    """Returns whether a sum over ranks, each with its number from 1 on, is right at some places."""
    found = total[[0, len(total) // 2, -1]]
    return bool((found == world_size * (world_size + 1) / 2).all())


def _world_size() -> int:
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])


def _tfdp(plan: RankPlan, rank: int) -> Engine:
    import tfdp

    strategies = {
        side: tfdp.DataParallelStrategy(topology=side, engine=plan.engine) for side in plan.sides
    }
    return lambda side, elements: sum_of_strategy(strategies[side], elements)


def sum_of_strategy(strategy: Any, elements: int) -> Callable[[], np.ndarray]:
    """Returns the sum over the replicas of a strategy, each with its number from 1 on."""
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


def main(
    engines: Mapping[str, Callable[[RankPlan, int], Engine]] | None = None,
    link_bytes: Callable[[], int] | None = None,
) -> None:
    """Reads the plan that the command line names, measures, and writes the results.

    Args:
      engines: Those beside tfdp's, by their names.
      link_bytes: See :func:`measure`.
    """
    (path,) = sys.argv[1:]
    content = json.loads(pathlib.Path(path).read_text())
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    plan = RankPlan(**lists)
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    engine = (engines or {}).get(plan.engine, _tfdp)(plan, rank)
    found = measure(plan, engine, link_bytes)
    (pathlib.Path(plan.folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
