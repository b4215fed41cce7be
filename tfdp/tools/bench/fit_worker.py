"""One measurement in this process; prints one line of JSON.

    python -m tfdp.tools.bench.fit_worker --side tfdp --model mlp --replicas 2 --batch 16 --steps 20

`benchmarks fit` starts a fresh process for each measurement, because a process can fix its devices
only once, and so that no side profits from what another side has warmed up.
"""

import argparse
import contextlib
import json
import os
import statistics
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp import cluster
from tfdp.base import machine
from tfdp.cluster import rank_status
from tfdp.tools.bench.bench_devices import of_replicas
from tfdp.tools.bench.bench_models import MODELS, build_model, random_batch

# The sides by the name in options and results, with the name that tables show.
SIDES = {
    "tfdp": "tfdp",
    "tfdp_mpi": "tfdp, mpi",
    "stock": "stock",
    "stock_tuned": "stock, tuned",
    "ddp": "DDP, gloo",
    "one_device": "one device",
}


def measure(
    side: str,
    model: str,
    replicas: int,
    batch: int,
    steps: int,
    jit_compile: bool = False,
    device: str = "CPU",
) -> dict:
    """Times `model.fit` on devices of this process, or of the cluster that it is in.

    Args:
      side: `"tfdp"`, `"tfdp_mpi"` (the engine mpi), `"stock"` or `"stock_tuned"`
        (`tf.distribute.MirroredStrategy`; in a cluster `MultiWorkerMirroredStrategy`) or
        `"one_device"`, which gets the same global batch and no strategy.
      model: A name in :data:`tfdp.tools.bench.bench_models.MODELS`.
      replicas: The number of replicas.
      batch: The number of examples per replica.
      steps: The number of steps to time after the first.
      jit_compile: The argument of `compile`.
      device: The kind of the devices, "CPU" or "GPU"; see
        :func:`tfdp.tools.bench.bench_devices.of_replicas`.

    Returns:
      The configuration; `parameters`; `first_step_seconds`, from the call of `fit` to the end of
      its first step; `step_seconds`, a list; `median_step_seconds`; `collectives`, their number
      in a step, None where it is not counted; `threads`, those of TensorFlow's operations;
      `final_loss`; versions.
    """
    strategy = _strategy(side, 1 if side == "one_device" else replicas, device)
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        built = build_model(model, jit_compile)
    global_batch_size = replicas * batch
    inputs, labels = random_batch(model, global_batch_size)
    batches = (
        tf.data.Dataset.from_tensor_slices((inputs, labels))
        .repeat(steps + 1)
        .batch(global_batch_size, drop_remainder=True)
    )
    # Every process makes the same global batches, and takes its share of each.
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = batches.with_options(sharding)
    clock = StepTimes()
    called = time.perf_counter()
    counted = _Collectives(strategy, steps)
    history = built.fit(batches, epochs=1, callbacks=[clock, counted], verbose=0)
    step_seconds = [end - begin for begin, end in clock.steps[1:]]
    return {
        "side": side,
        "model": model,
        "replicas": replicas,
        "batch_per_replica": batch,
        "parameters": built.count_params(),
        "first_step_seconds": clock.steps[0][1] - called,
        "step_seconds": step_seconds,
        "median_step_seconds": statistics.median(step_seconds),
        "collectives": counted.in_a_step,
        "threads": int(os.environ.get("TF_NUM_INTRAOP_THREADS", len(machine.cores()))),
        "final_loss": history.history["loss"][-1],
        "versions": {
            "tfdp": tfdp.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
        },
    }


class StepTimes(keras.callbacks.Callback):
    """A callback that notes when each step begins, and when its loss is known on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[float, float]] = []
        self._began = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append((self._began, time.perf_counter()))


class _Collectives(keras.callbacks.Callback):
    """A callback that counts the collectives of tfdp between the first step and the last."""

    def __init__(self, strategy: tf.distribute.Strategy | None, steps: int) -> None:
        super().__init__()
        in_cluster = isinstance(strategy, tfdp.DataParallelStrategy) and strategy.world_size > 1
        self._strategy = strategy if in_cluster else None
        self._steps = steps
        self._done: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._strategy is not None and batch in (0, self._steps):
            self._done.append(self._strategy.extended.processes.progress().done)

    @property
    def in_a_step(self) -> float | None:
        """The number of collectives in a step; None outside of a cluster of tfdp."""
        return None if not self._done else (self._done[-1] - self._done[0]) / self._steps


def _strategy(side: str, replicas: int, device: str) -> tf.distribute.Strategy | None:
    in_cluster = cluster.detect().world_size > 1
    if in_cluster and side.startswith("stock"):
        rank_status.tell(made=True)
        return multi_worker_strategy()
    if in_cluster:
        return tfdp.DataParallelStrategy(engine="mpi" if side == "tfdp_mpi" else "tensorflow")
    names = of_replicas(replicas, device)
    if side == "one_device":
        return None
    if side == "stock":
        return tf.distribute.MirroredStrategy(names)
    return tfdp.DataParallelStrategy(devices=names)


def multi_worker_strategy() -> Any:
    """Returns TensorFlow's own strategy over the cluster in `TF_CONFIG`, with which `fit` starts.

    Two patches are needed. The symbolic build is left out, as it reduces a nested first batch
    (ValueError). And Keras is not told that the strategy has many workers, or it reduces scalars
    over an axis.
    """
    from keras.src.backend.tensorflow import trainer

    trainer.TensorFlowTrainer._maybe_symbolic_build = lambda self, *args, **kwargs: None
    trainer._collective_all_reduce_multi_worker = lambda strategy: False
    return tf.distribute.MultiWorkerMirroredStrategy()


def main() -> None:
    parser = argparse.ArgumentParser(description="One measurement of `benchmarks fit`.")
    parser.add_argument("--side", choices=tuple(SIDES), required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    for name in ("--replicas", "--batch", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", choices=("CPU", "GPU"), default="CPU")
    parser.add_argument("--jit-compile", action="store_true")
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
