"""Data whose length is not known before they end: on one device the last step finds no batch.

What of it waits for no batch has been done by then: it counts, draws and resets.
"""

import itertools

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from replica_counts import DEVICE

X, Y = harness.regression_data(22)


class Counting(keras.Sequential):
    """Counts its steps by itself, and takes the mean of their losses."""

    def __init__(self, layers):
        super().__init__(layers)
        self.seen, self.steps = keras.metrics.Mean(), self.add_weight(trainable=False, name="steps")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.seen.update_state(loss)
        self.steps.assign_add(1.0)
        return {"seen": self.seen.result()}

    def test_step(self, data):
        x, y = data
        self.steps.assign_add(10.0)
        return {"error": tf.reduce_mean((self(x) - y) ** 2)}

    @property
    def metrics(self):
        return [self.seen]


def batches():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True)
    return dataset.batch(8)


def counts(model):
    """The numbers that steps without a batch change, of all that is drawn and counted."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    drawn = model.layers[1].seed_generator.state
    own = [model.steps] if isinstance(model, Counting) else []
    return [variable.numpy().tolist() for variable in (optimizer._iterations, drawn, *own)]


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.05, use_ema=True),
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=8.0
    ),
}


# `make test` runs each setting's values.
KEPT = [
    ("Adam", Counting, True, 2),
    ("accumulating", keras.Sequential, False, 1),
    ("loss scale", Counting, False, 2),
]


@pytest.mark.skipif(
    DEVICE == "GPU", reason="there what one device has done depends on who is faster, host or GPU"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "kind", "compiles", "steps"),
    tiers.cases(
        itertools.product(OPTIMIZERS, (keras.Sequential, Counting), (False, True), (1, 2)), KEPT
    ),
)
def test_what_waits_for_no_batch_is_done_at_the_end(
    optimizer, kind, compiles, steps, trains_as_one_device
):
    def build():
        layers = keras.layers
        model = kind(
            [keras.Input([5]), layers.Dense(4), layers.Dropout(0.5, seed=3), layers.Dense(1)]
        )
        made = OPTIMIZERS[optimizer]()
        model.compile(made, "mse", jit_compile=compiles, steps_per_execution=steps)
        return model

    def use(model):
        history = model.fit(batches(), epochs=3, verbose=0, validation_data=batches()).history
        return {"history": history, "counts": counts(model)}

    found, expected = trains_as_one_device(build, use, one_device_eagerly=False)
    assert found.seen["counts"] == expected.seen["counts"]
