"""A rank of a cluster that trains with telemetry; argv: the folder, and which rank is late."""

import os
import sys
import time

sys.modules.update(sklearn=None, matplotlib=None)  # see `tests/lean.py`

import keras  # noqa: E402
import numpy as np  # noqa: E402

import tfdp  # noqa: E402

folder, late = sys.argv[1], int(sys.argv[2])
strategy = tfdp.DataParallelStrategy(timeout_seconds=200)


class Late(keras.callbacks.Callback):
    """Takes a while before each step that is sampled, long beside what else delays a step."""

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.3 * (batch % 2))


with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
given = os.environ.get("TELEMETRY_ON", "all")
callbacks = [Late()] if strategy.rank == late else []
if given == "all" or strategy.rank == int(given):
    callbacks.append(tfdp.callbacks.Telemetry(folder, sample_every=2))
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
print("trained")
