"""Trains in one of several processes with a Checkpoint: ADDRESS PROCESSES NUMBER ENDS FOLDER."""

import gc
import os
import pathlib
import signal
import sys

import jax

address, processes, number, ends, folder = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, int(processes), int(number))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdp  # noqa: E402


class Ends(keras.callbacks.Callback):
    """Tells the last process to end in the midst of an epoch and of an accumulation."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 8 and int(number) == int(processes) - 1:
            os.kill(os.getpid(), signal.SIGTERM)


keras.utils.set_random_seed(1)
with tfdp.XLAStrategy(shard="parameters").scope():
    model = keras.Sequential(
        [
            keras.Input([16]),
            keras.layers.Dense(512, activation="tanh"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(130),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01, use_ema=True, gradient_accumulation_steps=2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
rng = np.random.default_rng(0)
x, y = rng.normal(size=[96, 16]).astype("float32"), rng.integers(0, 10, [96])
folder = pathlib.Path(folder)
# Each process is given the callbacks; the first one alone writes files.
callbacks = [
    tfdp.callbacks.Checkpoint(folder / "checkpoints", every_steps=7),
    keras.callbacks.CSVLogger(folder / "log.csv", append=True),
    keras.callbacks.ModelCheckpoint(folder / "best.keras"),
    *([Ends()] if ends == "True" else []),
]
batches = tfdp.data.pipeline((x, y), 32, seed=1)
history = model.fit(batches, epochs=4, callbacks=callbacks, verbose=0)
model.save(folder / "end.keras")
every = [*model.variables, *model.optimizer.variables]
arrays = {f"{index}": variable.numpy() for index, variable in enumerate(every)}
arrays["saved"] = np.concatenate([each.ravel() for each in model.get_weights()])
model.set_weights([np.zeros_like(each) for each in model.get_weights()])
model.load_weights(folder / "end.keras")
arrays["loaded"] = np.concatenate([each.ravel() for each in model.get_weights()])
# No process but the first makes the graph that is served; it must not fetch alone what steps leave.
gc.disable()
model.export(folder / "served", verbose=False)
served = tf.saved_model.load(str(folder / "served"))
np.testing.assert_allclose(served.serve(x), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
model.fit(batches, epochs=1, verbose=0)
arrays["after"] = np.concatenate([each.ravel() for each in model.get_weights()])
np.savez(folder / f"{number}.npz", losses=history.history["loss"], **arrays)
