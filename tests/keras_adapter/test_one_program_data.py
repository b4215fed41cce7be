"""Data of every kind, fed to Keras' steps as one program, give what one device gives."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops

pytestmark = pytest.mark.slow

X, _ = harness.regression_data(14)


# ---- what `predict` gives


class Outputs(keras.Model):
    """A model that gives a function of its Dense layer's output, of its kernel and of the input."""

    def __init__(self, function):
        super().__init__()
        self.dense, self.function = layers.Dense(3), function

    def call(self, x):
        return self.function(self.dense(x), x, self.dense.kernel)


def ragged(p, x, kernel):
    lengths = tf.cast(x[:, 0] > 0, tf.int64) + tf.cast(x[:, 1] > 0, tf.int64)
    return tf.RaggedTensor.from_row_lengths(tf.repeat(p, lengths, axis=0), lengths)


# Of each output whether batches can be joined, or must be one.
OUTPUTS = {
    "several": (lambda p, x, kernel: {"a": p, "b": ops.square(p)}, True),
    "of more axes": (lambda p, x, kernel: ops.stack([p, p], axis=1), True),
    "of one axis": (lambda p, x, kernel: ops.sum(p, axis=1), True),
    "texts": (lambda p, x, kernel: tf.strings.as_string(x), True),
    "ragged": (ragged, True),
    "time-major": (lambda p, x, kernel: ops.swapaxes(ops.stack([p, p], axis=1), 0, 1), False),
    "scalar": (lambda p, x, kernel: ops.sum(p), True),
    "kernel": (lambda p, x, kernel: kernel + 0.0 * ops.mean(x), True),
    "two rows an example": (lambda p, x, kernel: ops.concatenate([p, p], axis=0), True),
    "among several": (lambda p, x, kernel: [p, ops.sum(p)], True),
    "as long as a share": (lambda p, x, kernel: ops.reshape(ops.mean(p, axis=0), (3, 1)), True),
}


@pytest.mark.parametrize("steps", tiers.first_of(1, 3))
@pytest.mark.telling
def test_predict_gives_one_devices_outputs_of_any_kind(steps, replicas):
    for name, (function, joins) in OUTPUTS.items():
        if steps > 1 and name in ("scalar", "among several"):
            continue  # on one device Keras cannot join these of several steps
        seen = []
        for count in (None, replicas):
            model = harness.build_in_scope(lambda: Outputs(function), count)  # noqa: B023
            model.compile(steps_per_execution=steps)
            size = 4 if joins else 14
            seen.append(tf.nest.flatten(model.predict(X, batch_size=size, verbose=0)))
        for one, many in zip(*seen, strict=True):
            assert type(many) is type(one), name
            if isinstance(one, tf.RaggedTensor):
                assert many.row_splits.numpy().tolist() == one.row_splits.numpy().tolist()
                one, many = one.flat_values, many.flat_values
            if np.asarray(one).dtype == object:
                assert np.asarray(many).tolist() == np.asarray(one).tolist(), name
            else:
                np.testing.assert_allclose(many, one, rtol=1e-6, atol=1e-6, err_msg=name)


def test_predict_is_not_traced_again_for_the_short_last_batch(replicas):
    traced = []

    def function(p, x, kernel):
        traced.append(x.shape)
        return p

    model = harness.build_in_scope(lambda: Outputs(function), replicas)
    model.predict(X[:4], batch_size=4, verbose=0)
    before = len(traced)
    assert len(model.predict(X, batch_size=4, verbose=0)) == 14
    assert len(traced) == before


class Doubling(Outputs):
    """Gives two rows for each example in a step of its own."""

    def predict_step(self, data):
        rows = self(data)
        return {"rows": ops.concatenate([rows, rows])}


def test_a_predict_step_of_ones_own_gives_one_devices_rows(trains_as_one_device):
    def build():
        model = Doubling(lambda p, x, kernel: p)
        model.compile("sgd", "mse")
        return model

    trains_as_one_device(build, lambda model: model.predict(X, batch_size=4, verbose=0))
