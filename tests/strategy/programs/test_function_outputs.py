"""What functions return in a dictionary, tensors of several components beside plain ones."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

X = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def ragged(x):
    return tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill([tf.shape(x)[0]], 3))


def ragged_twice(x):
    return tf.RaggedTensor.from_uniform_row_length(ragged(x), 1)


def sparse(x):
    count = tf.shape(x, tf.int64)[0]
    places = tf.stack([tf.range(count), tf.range(count) % 3], 1)
    return tf.SparseTensor(places, x[:, 0], tf.stack([count, 3]))


def of_rows(x):
    return tf.IndexedSlices(x, 2 * tf.range(tf.shape(x)[0]), tf.constant([8, 3]))


COMPOSITES = [ragged, ragged_twice, sparse, of_rows]


def check_same(found, expected):
    """Asserts that nests are of the same types, in the same order, and of the same numbers."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        for name in expected:
            check_same(found[name], expected[name])
        return
    tf.nest.assert_same_structure(found, expected, expand_composites=True)
    pairs = zip(
        tf.nest.flatten(found, expand_composites=True),
        tf.nest.flatten(expected, expand_composites=True),
        strict=True,
    )
    for one, other in pairs:
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("composite", COMPOSITES)
def test_a_dictionary_may_hold_composite_tensors(either, composite):
    def function(x):
        return {"z": composite(x), "a": tf.reduce_sum(x), "none": None, "m": composite(x + 1.0)}

    def alone(x):
        return {"of it alone": composite(x)}

    for each in (function, alone):
        step = either.partitioned(each)
        for x in (X, X + 2.0, X):  # later calls go other ways
            check_same(step(tf.constant(x)), each(tf.constant(x)))
        assert step.experimental_get_tracing_count() == 1


class Outputs(keras.Model):
    """A model without weights that returns a function of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)

    def predict_step(self, data):
        return self(data)


@pytest.mark.parametrize("composite", [ragged, sparse])
@pytest.mark.parametrize("steps", tiers.first_of(2, 1))
def test_predict_joins_composite_tensors_in_a_dictionary(either, composite, steps):
    def function(x):
        return {"z": composite(x), "a": 2.0 * x}

    def predicted():
        model = Outputs(function)
        model.compile(steps_per_execution=steps)
        return model.predict(X, batch_size=2, verbose=0)

    expected = predicted()
    with either.scope():
        found = predicted()
    check_same(found, expected)
