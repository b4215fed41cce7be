"""Steps of Keras' trainer that all replicas run as one program train as one device does."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

X, Y = np.random.default_rng(0).normal(size=(2, 29, 6)).astype("float32")


def trained(strategy, **compiled):
    """What a model has learned and says, on batches of 8, 8, 8 and 5 examples."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, "relu"),
                layers.BatchNormalization(synchronized=tf.distribute.has_strategy()),
                layers.Dropout(0.3),
                layers.Dense(6),
            ]
        )
        optimizer = keras.optimizers.Adam(
            0.02, global_clipnorm=0.1, gradient_accumulation_steps=2, use_ema=True
        )
        model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    logs = model.fit(
        X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=(X[:9], Y[:9])
    ).history
    on_batches = [model.train_on_batch(X[:2], Y[:2]), model.test_on_batch(X[:5], Y[:5])]
    predicted = [model.predict(X, batch_size=8, verbose=0), model.predict_on_batch(X[:1])]
    return [*model.get_weights(), *logs.values(), *on_batches, *predicted]


@pytest.mark.parametrize(
    "compiled", tiers.first_of({"steps_per_execution": 3}, {}, {"jit_compile": True}), ids=str
)
def test_fit_evaluate_and_predict_are_one_devices(compiled):
    # What draws is not compiled: its numbers are those of a step that is not.
    expected = trained(tf.distribute.get_strategy(), **{**compiled, "jit_compile": False})
    for found, one in zip(trained(harness.strategy(3), **compiled), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-5)
