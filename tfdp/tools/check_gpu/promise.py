"""The promise: replicas train like one device, on parts of one GPU and on a GPU each."""

import dataclasses
import sys
from typing import Any

import tensorflow as tf

import tfdp
from tfdp.tools.bench.bench_devices import of_replicas, split
from tfdp.tools.check_gpu.check_programs import PROGRAMS, batches
from tfdp.tools.check_gpu.findings import StageFinding
from tfdp.tools.doctor.measure import measure

_NUMBERS = 4_000_000  # in the large all-reduce: 16 MB
_SUM_SECONDS = 60.0


def on_parts(device: str, parts: int) -> StageFinding:
    """Returns how far replicas on parts of the first device part from one such part."""
    strategy = tfdp.DataParallelStrategy(devices=split(parts, device))
    equal, said, details = _verified(strategy)
    return StageFinding("works" if equal else "differs", f"{parts} parts: {said}", details)


def on_gpus(device: str, gpus: int) -> StageFinding:
    """Returns whether replicas on a device each sum right, and how far they part from one."""
    strategy = tfdp.DataParallelStrategy(devices=of_replicas(gpus, device))
    summed = measure(strategy, _NUMBERS, _SUM_SECONDS)
    equal, said, details = _verified(strategy)
    milliseconds = 1e3 * (summed.large_seconds or 0.0)
    by = "NCCL" if strategy.extended.is_nccl else "TensorFlow's rings"
    right = "right" if summed.right else "WRONG"
    said = f"{gpus} replicas: 16 MB summed {right} by {by} in {milliseconds:.2f} ms; {said}"
    details = {"sums": dataclasses.asdict(summed), **details}
    return StageFinding("works" if equal and summed.right else "differs", said, details)


def _verified(strategy: tf.distribute.Strategy) -> tuple[bool, str, dict[str, Any]]:
    """Returns whether all programs train like one device, which do not, and how far they part."""
    found: dict[str, dict[str, Any]] = {}
    for name, build in PROGRAMS.items():
        print(f"promise: {name}", file=sys.stderr, flush=True)
        try:
            report = tfdp.verify(build, batches(name), strategy=strategy)
        except Exception as error:  # the next program may work
            found[name] = {"equal": False, "error": f"{type(error).__name__}: {error}"}
            continue
        largest = max(each.size for each in (*report.parted, *report.agreeing))
        found[name] = {"equal": bool(report), "difference": largest, "report": repr(report)}
    unlike = [name for name, each in found.items() if not each["equal"]]
    if unlike:
        first = found[unlike[0]]
        why = first.get("error") or f"parts by {first['difference']:.1e}"
        said = f"not like one device: {', '.join(unlike)} ({unlike[0]}: {why})"
    else:
        largest = max(each["difference"] for each in found.values())
        said = f"{', '.join(found)} train like one device, within {largest:.1e}"
    return not unlike, said, {"programs": found}
