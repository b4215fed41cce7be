"""What a program of fixed sizes logs is what Keras logs where a trace knows no length."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tfdp import keras as tfdp_keras
from tfdp.communication.replicas import one_device

tfdp_keras.install()

X = np.arange(18.0, dtype="float32").reshape(6, 3)


def logged(rows, context):
    """The losses that a model of two outputs logs of two batches, the second one short."""
    inputs = keras.Input([3])
    outputs = [keras.layers.Dense(1, name=name, kernel_initializer="ones") for name in "ab"]
    model = keras.Model(inputs, [layer(inputs) for layer in outputs])
    model.compile(loss=["mse", "mae"], jit_compile=False)

    def step(x):
        model.compute_loss(x, [x[:, :1], x[:, 1:2]], model(x))

    for batch in (X[:4], X[4:]):
        spec = tf.TensorSpec([len(batch) if rows else None, 3])
        with context():
            traced = tf.function(step).get_concrete_function(spec)
        traced(tf.constant(batch))
    return [float(metric.result()) for metric in model.metrics[1:]]


def test_losses_of_outputs_weigh_as_where_no_length_is_known():
    expected = [
        np.mean([np.mean(each) for each in (batches[:4], batches[4:])])
        for batches in ((X.sum(1) - X[:, 0]) ** 2, abs(X.sum(1) - X[:, 1]))
    ]
    plain = contextlib.nullcontext
    np.testing.assert_allclose(logged(rows=False, context=plain), expected, rtol=1e-6)
    fixed = logged(rows=True, context=lambda: one_device.traced(sizes_are_fixed=True))
    np.testing.assert_allclose(fixed, expected, rtol=1e-6)
    assert abs(logged(rows=True, context=plain)[0] - expected[0]) > 1  # as Keras weighs by lengths
