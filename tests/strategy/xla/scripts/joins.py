"""Trains in the processes that a launcher starts, of which one may fail: FOLDER HOW RANK [WHEN].

What fails does so in the first attempt alone. JAX is not told of any process.
"""

import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdp

folder, how, rank = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
# Which attempt this is, by `tfdp run` or by the test that replaces pods.
attempt = os.environ.get("TFDP_RESTART_COUNT", os.environ.get("TFDP_TEST_POD", "0"))
is_first = attempt == "0"
if how == "unlike shard":
    strategy = tfdp.XLAStrategy(
        shard="optimizer" if os.environ["TF_CONFIG"].endswith("1}}") else None
    )
elif how == "unlike order":
    layouts = [("kernel", (None, None)), ("up/kernel", (None, "model"))]
    if os.environ["TF_CONFIG"].endswith("1}}"):
        layouts.reverse()
    strategy = tfdp.XLAStrategy(mesh={"batch": 2, "model": 1}, layout_map=dict(layouts))
elif how == "used before":
    import jax

    jax.devices()
strategy = tfdp.XLAStrategy()
processes = strategy.extended.processes
fails = is_first and processes.rank == rank
print(f"{strategy} in {processes.world_size} processes", flush=True)


def rest(logs):
    """Waits until no rank is in a program, and on the ranks that stay until another one is lost."""
    float(logs["loss"])
    (folder / f"rests-{processes.rank}").touch()
    while len(list(folder.glob("rests-*"))) < processes.world_size:
        time.sleep(0.05)
    while not fails and processes.board.failure is None:
        time.sleep(0.05)
    time.sleep(0 if fails else 3)  # JAX would abort meanwhile


class Fails(keras.callbacks.Callback):
    """Ends the rank in the midst of an epoch, after a checkpoint and some steps."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if how == "killed at rest" and self.steps == 6:
            rest(logs)
        if not fails or self.steps != 6:
            return
        while not list(folder.glob("checkpoints/*.checkpoint")):
            time.sleep(0.05)  # rank 0 writes it meanwhile
        if how.startswith("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "raises":
            raise ValueError("a mistake of one rank")
        if how == "leaves":
            sys.exit(0)
        if how == "stops training":
            self.model.stop_training = True


class Model(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        if how == "unlike program":
            logs["loss"] = logs["loss"] * (2.0 if fails else 3.0)
        return logs


keras.utils.set_random_seed(1)
with strategy.scope():
    model = Model(
        [
            keras.Input([16]),
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
rng = np.random.default_rng(0)
x, y = rng.normal(size=[96, 16]).astype("float32"), rng.integers(0, 10, [96])
if how == "unlike sizes" and fails:
    x, y = x[:90], y[:90]
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12).repeat()
elif how.startswith("unlike"):
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12).repeat()
else:
    data = tfdp.data.pipeline((x, y), 12, seed=1)
kept = tfdp.callbacks.Checkpoint(folder / "checkpoints", every_steps=4)
try:
    steps = {"steps_per_epoch": 8} if how.startswith("unlike") else {}
    model.fit(data, epochs=4, callbacks=[kept, Fails()], verbose=0, **steps)
except Exception as error:
    print(f"GOT {type(error).__name__} at {time.time():.1f}: {error}", flush=True)
    raise
print("seeds", [each.numpy() for each in model.variables if "seed" in each.path], flush=True)
weights = np.concatenate([each.numpy().ravel() for each in model.variables])
np.save(folder / f"{processes.rank}.npy", weights)
