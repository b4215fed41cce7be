"""`keras.Input(sparse=True)`: the kernel's gradient has each row once, as on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(3)
X = RNG.normal(size=(21, 12)) * (RNG.random((21, 12)) < 0.3)
Y = X.sum(1, keepdims=True) + 0.5

OPTIMIZERS = {
    "Adam and a clipped norm": lambda: optimizers.Adam(0.05, global_clipnorm=0.3),
    "Adam": lambda: optimizers.Adam(0.05),
    "a clipped value": lambda: optimizers.SGD(0.1, clipvalue=0.05),
    "accumulation": lambda: optimizers.Adam(0.05, gradient_accumulation_steps=2),
    "a loss scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.05, global_clipnorm=0.3), initial_scale=64.0
    ),
}


def fit(model):
    sparse = tf.sparse.from_dense(X.astype("float32"))
    data = tf.data.Dataset.from_tensor_slices((sparse, Y.astype("float32"))).batch(7)
    return model.fit(data, epochs=2, verbose=0).history


@pytest.mark.parametrize(
    "case",
    [
        name if not ordinal else pytest.param(name, marks=pytest.mark.exhaustive)
        for ordinal, name in enumerate(OPTIMIZERS)
    ],
)
def test_a_sparse_input_trains_as_on_one_device(case, trains_as_one_device):
    def build():
        model = keras.Sequential([keras.Input((12,), sparse=True), keras.layers.Dense(1)])
        model.compile(OPTIMIZERS[case](), "mse")
        return model

    trains_as_one_device(build, fit)
