"""What `predict` gives is one device's, or an error that says what its first axis must be."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops

pytestmark = pytest.mark.slow

X, _ = harness.regression_data(14)


def model_of(function, replicas=None, batch=None):
    """A model whose outputs are a function of a Dense layer's."""

    def build():
        inputs = keras.Input((5,), batch_size=batch)
        dense = layers.Dense(3)
        hidden = dense(inputs)
        return keras.Model(inputs, function(hidden, dense))

    return harness.build_in_scope(build, replicas)


def through(layer_function):
    return lambda hidden, dense: layers.Lambda(layer_function)(hidden)


def kernel(hidden, dense):
    class Kernel(layers.Layer):
        def call(self, x):
            return dense.kernel + 0.0 * ops.mean(x)

    return Kernel()(hidden)


NOT_OF_EXAMPLES = {
    "time-major": through(lambda p: ops.swapaxes(ops.stack([p, p], axis=1), 0, 1)),
    "scalar": through(ops.sum),
    "kernel": kernel,
    "two rows an example": through(lambda p: ops.concatenate([p, p], axis=0)),
    "among several": lambda hidden, dense: [hidden, through(ops.sum)(hidden, dense)],
    "as long as a share": through(lambda p: ops.reshape(ops.mean(p, axis=0), (3, 1))),
}


def as_arrays(x):
    return x


def as_dataset(x):
    """Of shares of a known length, three examples each for two replicas."""
    return tf.data.Dataset.from_tensor_slices(x).batch(6, drop_remainder=True)


@pytest.mark.parametrize("data", tiers.first_of(as_arrays, as_dataset))
def test_an_output_whose_first_axis_is_not_the_examples_is_refused(data):
    for name, function in NOT_OF_EXAMPLES.items():
        model = model_of(function, replicas=2)
        with pytest.raises(
            (ValueError, tf.errors.InvalidArgumentError), match="must be that of the examples"
        ):
            model.predict(data(X), batch_size=None if data is as_dataset else 6, verbose=0)
            pytest.fail(name)


OF_EXAMPLES = {
    "several": lambda hidden, dense: {"a": hidden, "b": through(ops.square)(hidden, dense)},
    "of more axes": through(lambda p: ops.stack([p, p], axis=1)),
    "of one axis": through(lambda p: ops.sum(p, axis=1)),
}


@pytest.mark.parametrize("data", tiers.first_of(as_dataset, as_arrays))
def test_outputs_of_the_examples_are_one_devices(data, replicas):
    for function in OF_EXAMPLES.values():
        seen = []
        for count in (None, replicas):
            model = model_of(function, count)
            options = {} if data is as_dataset else {"batch_size": 4}
            seen.append(tf.nest.flatten(model.predict(data(X), verbose=0, **options)))
        for one, many in zip(*seen, strict=True):
            np.testing.assert_allclose(many, one, rtol=1e-6, atol=1e-6)


def test_a_predict_step_of_ones_own_is_checked_by_its_outputs_lengths():
    class Own(keras.Model):
        def __init__(self, doubled):
            super().__init__()
            self.dense, self.doubled = layers.Dense(3), doubled

        def call(self, x):
            return self.dense(x)

        def predict_step(self, data):
            rows = self(data)
            return ops.concatenate([rows, rows]) if self.doubled else {"rows": rows}

    with harness.scope(2):
        wrong, right = Own(True), Own(False)
    assert right.predict(X, batch_size=4, verbose=0)["rows"].shape == (14, 3)
    with pytest.raises(ValueError, match="must be that of the examples"):
        wrong.predict(X, batch_size=4, verbose=0)
