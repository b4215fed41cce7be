"""A small training that decides much from step to step, for tests of what goes on after a stop."""

import functools
import time

import harness
import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.callbacks.checkpoint import agreed_points

EXAMPLES, BATCH, EPOCHS = 21, 4, 4
STEPS = 6  # of an epoch, the last one short


class Stop(Exception):
    """Stands for the end of a process."""


def stop():
    raise Stop


def until_asked():
    """Waits until the thread that hears signals, and of other ranks' wishes, has told of one."""
    [points] = agreed_points._open
    while not points._told:
        time.sleep(0.01)


class StopAt(keras.callbacks.Callback):
    """Stops after so many steps of the whole training."""

    def __init__(self, steps, how):
        super().__init__()
        self.left = steps
        self.how = how

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.how()


class Counts(keras.callbacks.Callback):
    """A callback of a user's own that offers its state."""

    def __init__(self):
        super().__init__()
        self.epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1

    def get_state(self):
        return {"epochs": self.epochs}

    def set_state(self, state):
        self.epochs = state["epochs"]


def adam():
    return keras.optimizers.Adam(0.05, global_clipnorm=1.0, gradient_accumulation_steps=4)


def build(make_optimizer=adam, devices=("CPU:0", "CPU:1"), **options):
    keras.utils.set_random_seed(3)
    strategy = tfdp.DataParallelStrategy(devices, **options)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Dense(4, activation="relu"),
                keras.layers.Dropout(0.5),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(make_optimizer(), loss="mse", metrics=["mae"])
    return model


def pipeline():
    return tfdp.data.pipeline(harness.regression_data(EXAMPLES), BATCH, seed=7)


def train(
    directory,
    *,
    stop_at=-1,
    how=stop,
    epochs=EPOCHS,
    steps_per_execution=1,
    make_optimizer=adam,
    devices=("CPU:0", "CPU:1"),
    data=None,
    others=(),
    compression=None,
    topology="native",
    shard=None,
    **every,
):
    """Trains from the newest checkpoint, as a script that is started again does."""
    options = {"compression": compression, "topology": topology, "shard": shard}
    model = build(make_optimizer, devices, **options)
    model.steps_per_execution = steps_per_execution
    counts = Counts()
    callbacks = [
        StopAt(stop_at, how),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True),
        counts,
        *others,
    ]
    if every:
        # First in the list: it must see what those after it have changed.
        callbacks.insert(0, tfdp.callbacks.Checkpoint(directory, **every))
    history = model.fit(
        **(data() if data else {"x": pipeline()}),
        epochs=epochs,
        callbacks=callbacks,
        validation_data=harness.regression_data(8),
        verbose=0,
    )
    values = [
        tf.convert_to_tensor(v).numpy() for v in (*model.variables, *model.optimizer.variables)
    ]
    return values, history.history, history.epoch, counts.epochs


def assert_same(left, right):
    for a, b in zip(left[0], right[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert left[1:] == right[1:]


def undisturbed():
    """Returns what a training without a stop ends with, in graphs as they are made now."""
    options = tf.config.optimizer.get_experimental_options()
    return _undisturbed(options.get("disable_meta_optimizer", False))


@functools.cache
def _undisturbed(as_traced):
    """Trains once for each way of graphs: those that TensorFlow rewrites round otherwise."""
    return train(None)
