"""A profile of some steps: the copies between memories, and the kernels that a GPU is given.

A copy to the host makes the host wait for all that the GPU was given before.
"""

import collections
import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.tools.bench.bench_devices import of_replicas
from tfdp.tools.check_gpu.check_programs import PROGRAMS, batches
from tfdp.tools.check_gpu.stages import StageFinding

_STEPS = 10
_PROGRAM = "mlp"
_ROWS = 64

# How CUPTI names copies, and what they are.
_COPIES = {
    "MemcpyD2H": "to the host",
    "MemcpyH2D": "to a GPU",
    "MemcpyP2P": "between GPUs",
    "MemcpyD2D": "within a GPU",
}
_NCCL, _KERNELS = "NCCL's kernels", "kernels"


def compared(device: str, replicas: int) -> StageFinding:
    """Returns what a step of a dense network with dropout copies and launches, for each side.

    The sides are one device, tfdp, and MirroredStrategy, which comes last: nothing runs after its
    failure.
    """
    names = of_replicas(replicas, device)
    makers: dict[str, Callable[[list[str]], tf.distribute.Strategy] | None] = {
        "one device": None,
        "tfdp": tfdp.DataParallelStrategy,
        "MirroredStrategy": tf.distribute.MirroredStrategy,
    }
    found: dict[str, dict[str, float]] = {}
    for side, make in makers.items():
        print(f"profile: {side}", file=sys.stderr, flush=True)
        found[side] = _of_steps(None if make is None else make([*names]))
    details = {"replicas": replicas, "of a step": found}
    if not any(found.values()):
        if device == "CPU":
            return StageFinding("works", "logical CPU devices have one memory: no copies", details)
        why = "no GPU is in the profile: CUPTI must be installed with CUDA, and the user be root"
        return StageFinding("failed", f"{why}, or permitted to profile", details)
    said = "; ".join(f"{side}: {_in_words(counts)}" for side, counts in found.items())
    return StageFinding("works", f"a step on {replicas}: {said}", details)


def _in_words(counts: dict[str, float]) -> str:
    copies = [f"{counts.get(kind, 0):g} {kind}" for kind in ("to the host", "to a GPU")]
    return f"copies {', '.join(copies)}, {counts.get(_KERNELS, 0):g} kernels"


def _of_steps(strategy: tf.distribute.Strategy | None) -> dict[str, float]:
    """Returns the counts of a step, without those of the first steps."""
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = PROGRAMS[_PROGRAM]()
        model.jit_compile = False  # of all sides
    x, y = (np.repeat(each[:1], _ROWS, 0) for each in batches(_PROGRAM)[0])
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    model.fit(data, steps_per_epoch=3, shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        profiled = _Profiled(folder)
        model.fit(data, steps_per_epoch=_STEPS, shuffle=False, verbose=0, callbacks=[profiled])
        (file,) = pathlib.Path(folder).glob("plugins/profile/*/*.xplane.pb")
        return {kind: n / _STEPS for kind, n in counted(file.read_bytes()).items()}


class _Profiled(keras.callbacks.Callback):
    """Profiles from before the first step to after the last."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        tf.profiler.experimental.start(self._folder)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        tf.profiler.experimental.stop()


def counted(serialized: bytes) -> dict[str, int]:
    """Returns how often each kind of copy, and kernels, were run on the GPUs of a profile.

    Args:
      serialized: The bytes of an `.xplane.pb`.

    >>> counted(b"")
    {}
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    counts: collections.Counter[str] = collections.Counter()
    for plane in xplane_pb2.XSpace.FromString(serialized).planes:
        if not plane.name.startswith("/device:GPU:"):
            continue
        for line in plane.lines:
            # Other lines tell the same again, by operation and step.
            if line.name.startswith("Stream"):
                for event in line.events:
                    counts[_kind(plane.event_metadata[event.metadata_id].name)] += 1
    return dict(counts)


def _kind(event: str) -> str:
    for name, kind in _COPIES.items():
        if name in event:
            return kind
    if event.startswith("Memset"):
        return "memsets"
    return _NCCL if "nccl" in event.lower() else _KERNELS
