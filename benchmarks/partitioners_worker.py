"""Programs of `benchmarks partitioners` in this process; prints a line of JSON for each.

python -m benchmarks.partitioners_worker --programs "a masked loss" distillation
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

# Before JAX is imported: its CPU devices stand for TPUs.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
# XLA's, of TensorFlow and of JAX: programs run a few steps, and to compile them takes longest.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import tensorflow as tf

import tfdp
from benchmarks.partitioners_programs import Outcome, compiles, difference, programs, trained
from tfdp.tools.bench.bench_devices import split

# Beyond this two outcomes differ by more than by rounding.
BOUND = 1e-4


def measure(
    run: Callable[[tf.distribute.Strategy], Any],
    by_tfdp: Sequence[int] = (2,),
    by_xla: Sequence[int] = (4,),
    compiles: bool = True,
) -> dict[str, Any]:
    """Trains a program on one device, and with both partitioners.

    Where a step that XLA compiles draws other numbers, one device and tfdp's replicas have theirs
    compiled, too, which TensorFlow does (`jit_compile=True`). What TensorFlow cannot compile, and
    `XLAStrategy` computes by other operations, is compared with one device of JAX's.

    Args:
      run: The program.
      by_tfdp: Numbers of replicas under `DataParallelStrategy`.
      by_xla: Numbers of devices under `XLAStrategy`.
      compiles: Whether TensorFlow can compile its steps for one device.

    Returns:
      For "tfdp 2", "xla 8" and so on how far it is from one device, and for "both" how far the
      first of each are from each other; see `compared`. For "compiled", if it was asked, how far
      one compiled device is from one that is not; for "own", if that was, one device of JAX's.
    """
    found: dict[str, Any] = {}
    expected, is_compiled, first = _outcome(run, None), False, None
    for count in by_xla:
        outcome = _outcome(run, tfdp.XLAStrategy(jax.devices()[:count]))
        result = compared(outcome, expected)
        if not is_compiled and "error" not in result and not _are_close(result):
            if not compiles:
                of_jax = _outcome(run, tfdp.XLAStrategy(jax.devices()[:1]))
                found["own"] = compared(of_jax, expected)
                found[f"xla {count}"] = compared(outcome, of_jax)
                continue
            compiled = _outcome(run, None, is_compiled=True)
            found["compiled"] = compared(compiled, expected)
            if "error" not in found["compiled"]:
                expected, is_compiled = compiled, True
                result = compared(outcome, expected)
        found[f"xla {count}"] = result
        first = first or outcome
        if isinstance(outcome, Exception):
            break  # so do other numbers of devices
    for count in by_tfdp:
        devices = [f"CPU:{index}" for index in range(count)]
        replicas = _outcome(run, tfdp.DataParallelStrategy(devices), is_compiled)
        found[f"tfdp {count}"] = compared(replicas, expected)
        if first is not None and "both" not in found:
            found["both"] = compared(replicas, first)
    return found


def _are_close(result: dict[str, Any]) -> bool:
    return result["values"] <= BOUND and result["changes"] <= BOUND


def _outcome(run: Any, strategy: Any, is_compiled: bool = False) -> Outcome | Exception:
    try:
        return trained(run, strategy, is_compiled)
    except Exception as error:  # The table shows what a user would see.
        return error


def compared(actual: Outcome | Exception, expected: Outcome | Exception) -> dict[str, Any]:
    """Compares two outcomes of a program.

    Returns:
      `values`, the largest difference over the largest value of its kind; `changes`, that of the
      weights over the largest of their changes; `unlike`, the variables that devices disagree on.
      Or `error` and what it `says`.
    """
    if isinstance(actual, Exception):
        return {"error": type(actual).__name__, "says": str(actual)}
    if isinstance(expected, Exception):
        return {"error": type(expected).__name__, "says": str(expected)}
    return {
        "values": difference(actual.values, expected.values),
        "changes": difference(actual.changes, expected.changes),
        "unlike": actual.unlike,
        "on_devices": actual.on_devices,
    }


def main() -> None:
    """Reads the command line, measures and prints."""
    every = programs()
    parser = argparse.ArgumentParser(description="Programs of `benchmarks partitioners`.")
    parser.add_argument("--programs", nargs="+", choices=every, default=list(every))
    parser.add_argument("--tfdp", nargs="*", type=int, default=[2])
    parser.add_argument("--xla", nargs="*", type=int, default=[4])
    parsed = parser.parse_args()
    split(max([1, *parsed.tfdp]), "CPU")
    # To rewrite graphs takes longer than their few steps.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for name in parsed.programs:
        begun = time.perf_counter()
        found = measure(every[name], parsed.tfdp, parsed.xla, compiles(name))
        found["seconds"] = round(time.perf_counter() - begun, 1)
        print(json.dumps({"program": name, **found}), flush=True)


if __name__ == "__main__":
    main()
