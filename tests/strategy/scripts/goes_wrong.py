"""Trains in a cluster until rank 1 does what the first argument says; prints what this rank got.

tfdp run -n 2 -- goes_wrong.py killed
"""

import json
import os
import signal
import sys
import threading
import time

sys.modules.update(sklearn=None, matplotlib=None)  # see `tests/lean.py`

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdp  # noqa: E402
from tfdp.communication.engines import tensorflow_engine  # noqa: E402

how = sys.argv[1]
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
guilty = rank == 1


class Trouble(keras.callbacks.Callback):
    """What happens to rank 1 after its third step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and how.startswith(("stopped", "sleeps")):  # all ranks have traced
            strategy = self.model.distribute_strategy
            strategy.extended.processes.board.timeout_seconds = 6
        if not guilty or batch != 2:
            return
        if how in ("killed", "killed in a ring"):
            os.kill(os.getpid(), signal.SIGKILL)
        if how in ("stopped", "stopped in a ring"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if how in ("raises", "goes on from an error"):
            raise ValueError("a mistake in a callback")
        if how == "exits":
            sys.exit(0)
        if how == "sleeps":
            time.sleep(30)
        if how == "stops in an epoch":
            self.model.stop_training = True
        if how == "goes eager":
            tf.config.run_functions_eagerly(True)

    def on_epoch_end(self, epoch, logs=None):
        if guilty and how == "stops after an epoch":
            self.model.stop_training = True


class Checked(keras.layers.Layer):
    """Has no step go on with what is no number."""

    def call(self, x):
        return tf.debugging.check_numerics(x, "a mistake in the data")


class OneMore(keras.layers.Layer):
    """Has one more operation on rank 1."""

    def call(self, x):
        return tf.sin(x) if guilty else x


def run():
    """Builds and trains."""
    options = {"timeout_seconds": 100, "startup_timeout_seconds": 100}
    if how.endswith("in a ring"):
        options["topology"] = "ring"
    if how.endswith("of NCCL"):  # for which TensorFlow takes its rings on CPUs
        tensorflow_engine.communication_hint = lambda devices: "nccl"
    if how == "too late" and guilty:
        tf.constant(1.0) + 1.0
    if how == "engines":
        options = {"engine": "tensorflow" if guilty else "mpi"}
    if how == "devices" and guilty:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        options["devices"] = ["CPU:0", "CPU:1"]
    strategy = tfdp.DataParallelStrategy(**options)
    if how.startswith("threads"):
        in_threads(strategy)
    units = 5 if how == "shape" and guilty else 4
    with strategy.scope():
        layers = [keras.Input((3,)), keras.layers.Dense(units, name="hidden")]
        if how == "one more operation":
            layers.append(OneMore())
        if how == "goes on from a step of NCCL":
            layers.insert(1, Checked())
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, clipnorm=2.5), "mse")
    if how == "absent" and guilty:
        return
    x = np.ones([64, 3], "float32")
    if how == "goes on from an error in a loop":
        return loop(strategy)
    if how == "goes on from a step of NCCL":
        x[:] = np.nan  # in the share of each rank
    try:
        model.fit(x, x[:, :1], batch_size=4, epochs=2000, verbose=0, callbacks=[Trouble()])
        model.evaluate(x, x[:, :1], verbose=0)
    except (ValueError, tf.errors.InvalidArgumentError):
        if not how.startswith("goes on from"):
            raise
        model.fit(np.ones_like(x), x[:, :1], batch_size=4, verbose=0)


def in_threads(strategy):
    """A thread makes a model, or trains one, and so does another meanwhile."""
    errors, goes_on = [], threading.Event()
    x = np.ones([64, 3], "float32")

    class GoesOn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            goes_on.set()

    def made(units):
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
            model.compile("sgd", "mse")
        return model

    def work(units):
        try:
            if how == "threads make models":
                made(units)
                goes_on.set()
            else:
                models[units].fit(x, x, batch_size=4, epochs=2000, verbose=0, callbacks=[GoesOn()])
        except Exception as error:
            errors.append(error)
            goes_on.set()

    models = {} if how == "threads make models" else {units: made(3) for units in (1, 2)}
    turned = guilty and how != "threads train at once"
    for units in (2, 1) if turned else (1, 2):
        thread = threading.Thread(target=work, args=(units,), name=f"thread of {units}")
        thread.start()
        goes_on.wait(100)
    thread.join(100)
    if errors:
        raise errors[0]


def loop(strategy):
    """Eager steps, of which rank 1 cannot make the third and skips it."""

    def step(number):
        if guilty and number == 2:
            raise ValueError("a mistake in a step")
        tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(float(number)))

    for number in range(10):
        try:
            strategy.run(step, args=(number,))
        except ValueError as error:
            print(f"skipped: {error}", flush=True)


try:
    run()
except BaseException as error:
    print(f"GOT {type(error).__name__}: {error}".replace("\n", " "), flush=True)
    raise
