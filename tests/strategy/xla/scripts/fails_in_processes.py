"""Trains in one of several processes, of which the last fails: ADDRESS PROCESSES NUMBER HOW."""

import os
import signal
import sys
import time

import jax

address, processes, number, how = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, int(processes), int(number))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdp  # noqa: E402

fails = int(number) == int(processes) - 1
x, y = np.ones([64, 4], "float32"), np.ones([64, 1], "float32")


def fail(where):
    if fails and (how == where or (how == "goes on" and where == "callback")):
        if where == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"a mistake in the {where}")


def batches():
    for start in range(0, 64, 8):
        if start == 24:
            fail("generator")
        yield x[start : start + 8], y[start : start + 8]


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            fail("callback")
            fail("killed")


class Model(keras.Sequential):
    def train_step(self, data):
        if data[0].shape[0] == 6:
            fail("step")
        return super().train_step(data)


def mapped(x, y, number):
    most = np.int64(30 if fails and how == "pipeline" else 64)
    with tf.control_dependencies(
        [tf.debugging.assert_less(number, most, "a mistake in the pipeline")]
    ):
        return tf.identity(x), y


keras.utils.set_random_seed(1)
strategy = tfdp.XLAStrategy()
with strategy.scope():
    model = Model([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
if how == "pipeline":
    data = tfdp.data.pipeline((x, y, np.arange(64)), 8, seed=1, shuffle=False, map_fn=mapped)
elif how == "step":
    data = tf.data.Dataset.from_tensor_slices((x[:30], y[:30])).batch(8)
else:
    signature = tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1])
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
try:
    model.fit(data, epochs=2, verbose=0, callbacks=[Fails()])
    if fails and how == "own code":
        raise ValueError("a mistake in the own code")
    for _ in range(5):
        model.evaluate(x, y, batch_size=8, verbose=0)
except Exception as error:
    print(f"GOT {type(error).__name__}: {error}", flush=True)
    if fails and how == "goes on":
        time.sleep(60)
    raise
