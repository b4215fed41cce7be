import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import of_drawn_batches

UNEVEN = np.arange(7 * 4 * 3, dtype=np.float32).reshape(7, 4, 3)
FEWER = UNEVEN[:2]  # than three replicas
RAW = tf.raw_ops


def merged(x):
    return tf.reshape(tf.transpose(x, [1, 0, 2]), [-1])


SIZES = {
    "shape": tf.shape,
    "shape in 64 bits": lambda x: tf.shape(x, tf.int64),
    "shape of merged axes": lambda x: tf.shape(merged(x)),
    "shapes": lambda x: RAW.ShapeN(input=[x, x[:, 0, :2]]),
    "size": tf.size,
    "size in 64 bits": lambda x: tf.size(x, tf.int64),
    "rank": lambda x: RAW.Rank(input=x),
    "shape of a summand": lambda x: tf.shape(tf.reduce_sum(x, 0)),
    "shape of what a shape made": lambda x: tf.shape(tf.zeros([2, tf.shape(x)[0] * 3, 1])),
    "arithmetic": lambda x: (tf.shape(x)[0] * 2 + 1) // 3 - tf.size(x) % 5,
    "number of examples": lambda x: tf.cast(tf.shape(x)[0], tf.float32) / 7,
}


@pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])
@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_those_of_the_whole_tensor(case, batch):
    assert not check(SIZES[case], batch, replicas=[3]).exchanged


def test_the_size_of_an_unknown_axis_is_carried_along():
    def function(x, other):
        joined = tf.tile(x[:, :1], [1, tf.shape(other)[0], 1])
        return tf.shape(joined), tf.size(tf.nn.relu(joined)), tf.shape(other)

    assert not check(function, UNEVEN, np.ones([5, 2], np.float32)).exchanged


def test_the_shape_of_values_of_unknown_number_is_that_of_whole_ones():
    check(lambda x: tf.shape(tf.boolean_mask(x, x[:, 0, 0] > 20)), UNEVEN, whole=None)


@pytest.mark.parametrize("batch", [UNEVEN, FEWER, UNEVEN[:1]], ids=["uneven", "fewer", "one"])
def test_axes_of_gradients_do_not_depend_on_the_number_of_examples(batch):
    def function(x):
        row, column = tf.constant([[1.0, -2, 3]]), tf.reshape(tf.range(4.0), [4, 1])
        with tf.GradientTape() as tape:
            tape.watch([x, row, column])
            loss = tf.reduce_sum((x * row + column) * tf.reduce_mean(x, 1, keepdims=True))
        return tape.gradient(loss, [x, row, column])

    check(function, batch, replicas=[3])


@of_drawn_batches
def test_sizes_are_those_of_one_device_wherever_the_batch_is(case):
    def function(t):
        return tf.shape(t), tf.size(t), tf.rank(t), RAW.ShapeN(input=[t, tf.reduce_sum(t, 0)])

    case.check(function, whole=[])
