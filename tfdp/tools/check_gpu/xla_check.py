"""`XLAStrategy` on what JAX has: right, in float32, and a step beside one of Keras on JAX.

It needs JAX's plugin alone of an accelerator: TensorFlow may be its build for CPUs. Each run has a
process of its own, and the sides of the times take turns.
"""

import importlib.util
import time
from typing import Any

from tfdp.tools.bench.child_process import ChildFailure, run_for_json
from tfdp.tools.bench.ratios import ratio
from tfdp.tools.check_gpu.speed import in_turn, medians
from tfdp.tools.check_gpu.stages import StageFinding, trained_alike

SIDES = ("tfdp", "keras_on_jax")
_WORKER = "tfdp.tools.check_gpu.xla_worker"
_ROUNDS = 2

# Others on the machine need memory, too; JAX would take three quarters of it at its first use.
_ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def compared(device: str, present: int, limit_seconds: float) -> StageFinding:
    """Returns whether five programs train as on the CPU, and what a step takes beside Keras on JAX.

    Args:
      device: "CPU", or "GPU" for whatever else JAX has, TPUs as well.
      present: The number of the machine's GPUs.
      limit_seconds: The time after which nothing is begun, or waited for, any more.
    """
    if importlib.util.find_spec("jax") is None:
        return StageFinding("skipped", "JAX, which runs XLAStrategy's programs, is not installed")
    ends = time.monotonic() + limit_seconds
    right = _run(["right"], device, limit_seconds)
    if isinstance(right, ChildFailure):
        state = "hangs" if right.reason.startswith("was killed after") else "failed"
        return StageFinding(state, str(right), {})
    if right["platform"] == "cpu" and device == "GPU":
        if not present:
            return StageFinding(
                "skipped", "JAX finds no GPU or TPU, and `nvidia-smi -L` shows no GPU"
            )
        fix = "`pip install 'tfdp[xla-cuda13]'`, or `tfdp[xla-cuda12]` for a driver before 580"
        return StageFinding("failed", f"JAX sees none of {present} GPUs: {fix}", right)
    times, failures = in_turn(
        SIDES,
        _ROUNDS,
        ends,
        lambda side, left: _run(["step", "--side", side, "--size", _SIZE[device]], device, left),
    )
    return _finding(right, {side: [] for side in SIDES} | times, failures)


_SIZE = {"GPU": "large", "CPU": "small"}


def _run(words: list[str], device: str, limit_seconds: float) -> dict | ChildFailure:
    environment = _ENVIRONMENT | ({"JAX_PLATFORMS": "cpu"} if device == "CPU" else {})
    on_gpus = device == "GPU"
    return run_for_json(_WORKER, words, limit_seconds, environment=environment, on_gpus=on_gpus)


def _finding(
    right: dict[str, Any], times: dict[str, list[float | None]], failures: list[str]
) -> StageFinding:
    alike, how = trained_alike(right["programs"], "the CPU")
    said = f"{right['devices']}, jax {right['jax']}: {how}"
    known = medians(times)
    if "tfdp" in known:
        said += f"; a step {1e3 * known['tfdp']:.2f} ms"
    rounds = min(map(len, times.values()))
    pairs = ratio(*(times[side][:rounds] for side in SIDES)) if rounds else None
    if pairs:
        said += f" ({pairs.median_of_pairs:.2f} x Keras on JAX's)"
    else:
        why = "a side has failed: see the file" if failures else "the time was over before"
        said += f"; no step of both sides: {why}"
    details = {**right, "step_seconds": times, "failures": failures}
    state = "differs" if not alike else "works" if pairs and not failures else "failed"
    return StageFinding(state, said, details)
