"""One case of `benchmarks equivalence` in this process; prints one line of JSON.

    python -m benchmarks.equivalence_worker --case "a masked loss" --replicas 4 --device CPU

Each case has a fresh process: a collective that fails aborts all later ones of its process.
"""

import argparse
import contextlib
import json
import warnings
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

import tfdp
from benchmarks.equivalence_cases import CASES
from tfdp.tools.bench.bench_devices import split
from tfdp.verification.training_run import compiled_if_told


def measure(
    case: str, devices: Sequence[str], sides: Sequence[str] = ("tfdp", "stock")
) -> dict[str, dict]:
    """Runs a case on one device, and under tfdp and the stock strategy.

    Args:
      case: A title in :data:`benchmarks.equivalence_cases.CASES`.
      devices: The devices of the replicas.
      sides: The sides to compare with one device.

    Returns:
      For each side, `"tfdp"` or `"stock"` (`tf.distribute.MirroredStrategy`): `relative`, the
      largest difference over the largest value of one device, NaN if the outcome is NaN; or
      `error`, the type of the error, if there is no outcome to compare.
    """
    expected = _run(CASES[case], None)
    # The stock strategy comes last: nothing runs after its failure.
    makers: dict[str, Callable[[list[str]], tf.distribute.Strategy]] = {
        "tfdp": tfdp.DataParallelStrategy,
        "stock": tf.distribute.MirroredStrategy,
    }
    found: dict[str, dict] = {}
    for side in sides:
        try:
            found[side] = _difference(expected, _run(CASES[case], makers[side]([*devices])))
        except Exception as error:  # The table shows what a user would see.
            found[side] = {"error": type(error).__name__}
    return found


def _run(case: Callable[[], np.ndarray], strategy: tf.distribute.Strategy | None) -> np.ndarray:
    keras.utils.set_random_seed(0)
    scope = strategy.scope() if strategy else contextlib.nullcontext()
    with warnings.catch_warnings(), scope, compiled_if_told():
        warnings.simplefilter("ignore")
        return case()


def _difference(expected: np.ndarray, seen: np.ndarray) -> dict:
    if expected.shape != seen.shape:
        return {"error": f"shape {list(seen.shape)}"}
    largest = np.abs(np.subtract(expected, seen, dtype=np.float64)).max()
    return {"relative": float(largest / np.abs(expected).max())}


def main() -> None:
    """Reads the command line, measures and prints."""
    parser = argparse.ArgumentParser(description="One case of `benchmarks equivalence`.")
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--device", choices=("CPU", "GPU"), required=True)
    parsed = parser.parse_args()
    devices = split(parsed.replicas, parsed.device)
    print(json.dumps(measure(parsed.case, devices)))


if __name__ == "__main__":
    main()
