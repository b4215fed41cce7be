"""A loop's gradient is one device's, and keeps a weight once, not in each iteration."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiers import cases, first_of

STEPS, UNITS = 48, 64


def network(layer, policy):
    """A recurrent network of many time steps."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input([STEPS, 4]), layer(UNITS, dtype=policy), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("policy", first_of("float32", "mixed_bfloat16"))
@pytest.mark.parametrize(
    "layer", first_of(keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN)
)
def test_a_recurrent_layer_keeps_its_kernels_once(on_devices, layer, policy):
    x = np.random.default_rng(0).normal(size=[8, STEPS, 4]).astype("float32")
    one = network(layer, policy)
    one.fit(x, x[:, 0, :1], batch_size=8, epochs=2, verbose=0)
    strategy = on_devices(2)
    with strategy.scope():
        model = network(layer, policy)
    model.fit(x, x[:, 0, :1], batch_size=8, epochs=2, verbose=0)
    bound = 1e-5 if policy == "float32" else 1e-2
    for weight, expected in zip(model.weights, one.weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=bound, rtol=0)
    recurrent = model.weights[1].shape
    in_each = STEPS * np.prod(recurrent) * (4 if policy == "float32" else 2)
    assert strategy.explain(model).memory_bytes < in_each


def sums_of(first, counted, read):
    """Two loops, the second of which reads rows that the first may not write.

    Args:
      first: Gives of a batch the row at which the first loop begins.
      counted: By how much its counter grows.
      read: Whether the second loop reads all rows, or those that were written.
    """

    def function(x, weight):
        rows = tf.zeros([8, 3])
        begin = first(x)

        def write(at, rows):
            return at + counted, tf.tensor_scatter_nd_update(rows, [[at]], weight[None])

        end, rows = tf.while_loop(lambda at, _: at < 6, write, [begin, rows])

        def add(at, total):
            return at - 1, total + rows[at - 1] * tf.cast(at, tf.float32) * tf.reduce_sum(x)

        return tf.while_loop(lambda at, _: at > 0, add, [8 if read else end, tf.zeros([3])])[1]

    return function


# The first loop of the one kept writes rows 0 to 5, as a loop of time steps does, and the second
# reads two more; that of the other begins at row 2, and the second goes back to the first row.
@pytest.mark.parametrize(
    ("first", "counted", "read"),
    cases(
        [(*of, read) for of in [(0, 1), (2, 1), (7, 1), (0, 2), (2, 2)] for read in (True, False)],
        kept=[(0, 1, True), (2, 1, False)],
    ),
)
def test_rows_that_no_loop_has_written_stay_zero(on_devices, first, counted, read):
    x, weight = tf.ones([4, 2]), tf.constant([1.0, 2.0, 3.0])
    for begin in (lambda _: tf.constant(first), lambda x: first + tf.cast(x[0, 0] - 1, tf.int32)):
        function = sums_of(begin, counted, read)
        np.testing.assert_allclose(
            on_devices(2).partitioned(function)(x, weight), function(x, weight), rtol=1e-6
        )
