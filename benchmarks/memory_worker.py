"""One rank of one measurement of `benchmarks memory`; prints one line of JSON.

tfdp run -n 2 -- python -m benchmarks.memory_worker --shard gradients --model mlp ...
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
from typing import Any

import keras
import tensorflow as tf

import tfdp
from tfdp.base.atomic_files import temporary_folder
from tfdp.callbacks.checkpoint import model_variables
from tfdp.callbacks.checkpoint.checkpoint_writer import CheckpointWriter
from tfdp.communication.replicas import processes_of
from tfdp.tools.bench import bench_models
from tfdp.tools.bench.fit_worker import StepTimes

# The first step traces.
_WARM_UP = 3

_STATES: dict[str, dict[str, Any]] = {
    "Adam": {},
    "Adam with an average": {"use_ema": True},
    "Adam in windows": {"gradient_accumulation_steps": 2},
}


def measure(shard: str, model: str, state: str, batch: int, steps: int) -> dict[str, Any]:
    """Measures what an optimizer keeps, and a step, in the cluster that this process is in.

    Args:
      shard: The strategy's `shard`, or "none".
      model: A name of :mod:`tfdp.tools.bench.bench_models`.
      state: One of `benchmarks.memory.STATES`.
      batch: The number of examples per replica.
      steps: The number of timed steps.

    Returns:
      The configuration; `parameters_mb`; `built_mb`, by which the process grew when the optimizer
      was built; `step_mb`, by which it grew at most in a step, by gradients and activations;
      `checkpoint_mb`, by which it grew at most while a checkpoint was written or sent;
      `state_mb` and `weights_mb`, by which it shrank when what the optimizer keeps, and what the
      model does, was emptied at the end; `step_ms`, the median.
    """
    strategy = tfdp.DataParallelStrategy(shard=None if shard == "none" else shard)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        built = bench_models.build_model(model)
        built.compile(keras.optimizers.Adam(1e-4, **_STATES[state]), loss=built.loss)
        before = resident_mb()
        built.optimizer.build(built.trainable_variables)
        grown = resident_mb() - before
    inputs, labels = bench_models.random_batch(model, strategy.num_replicas_in_sync * batch)
    data = tf.data.Dataset.from_tensors((inputs, labels)).repeat()
    times = StepTimes()
    built.fit(data, steps_per_epoch=_WARM_UP + steps, callbacks=[times], verbose=0)
    # At its end `fit` leaves averages and weights in the same memory.
    built.set_weights([2 * weight for weight in built.get_weights()])
    before_step = resident_mb()
    forget_peak()
    built.fit(data, steps_per_epoch=_WARM_UP, verbose=0)
    grown_in_step = peak_mb() - before_step
    return {
        "shard": shard,
        "model": model,
        "state": state,
        "rank": strategy.cluster_resolver.task_id,
        "replicas": strategy.num_replicas_in_sync,
        "parameters_mb": 4e-6 * built.count_params(),
        "built_mb": grown,
        "step_mb": grown_in_step,
        "checkpoint_mb": checkpoint_mb(built),
        "state_mb": emptied_mb(built.optimizer.variables),
        "weights_mb": emptied_mb(built.variables),
        "step_ms": 1e3 * statistics.median(end - begin for begin, end in times.steps[_WARM_UP:]),
    }


def checkpoint_mb(model: keras.Model) -> float:
    """Keeps a checkpoint as the callback does; returns the MB that this process grew by at most."""
    processes = processes_of(model.distribute_strategy)
    before = resident_mb()
    forget_peak()
    with temporary_folder() as folder:
        writer = CheckpointWriter(pathlib.Path(folder), keep=1)
        arrays = model_variables.wholes(processes, "all", model_variables.copies(model, processes))
        if processes.rank == 0:
            writer.write(1, {}, arrays)
        else:
            writer.send(arrays)
        writer.wait()
    return peak_mb() - before


def forget_peak() -> None:
    """Lets `peak_mb` begin anew: see proc(5)."""
    with open("/proc/self/clear_refs", "w") as what:
        what.write("5")


def peak_mb() -> float:
    """Returns the most memory that the process has held since `forget_peak`, in MB: see proc(5)."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def emptied_mb(kept: list[keras.Variable]) -> float:
    """Leaves nothing in this process' copies, or parts, of variables; returns the MB set free."""
    before = resident_mb()
    for variable in kept:
        for copy in variable.value.values:
            nothing = tf.zeros([0], copy.dtype)
            tf.raw_ops.AssignVariableOp(resource=copy.handle, value=nothing)
    return before - resident_mb()


def resident_mb() -> float:
    """Returns the memory that the process holds, in MB, without what it could give back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Measures as the command line says, and prints the result."""
    parser = argparse.ArgumentParser()
    for name in ("shard", "model", "state"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    found = measure(**vars(parser.parse_args()))
    print("MEASURED " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
