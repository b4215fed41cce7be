"""The gradient of the largest of overlapping windows, along an axis that devices share."""

import numpy as np
import pytest
import tensorflow as tf

ROWS = np.random.default_rng(0).normal(size=[24, 5]).astype("float32")


def of_a_sequence(rows):
    """The rows are a sequence."""
    return tf.nn.max_pool1d(rows[None], 3, 1, "SAME")


def of_an_image(rows):
    """What each row has in common with each is an image of one channel."""
    return tf.nn.max_pool2d((rows @ tf.transpose(rows))[None, :, :, None], 3, 1, "VALID")


def of_a_volume(rows):
    """The rows are layers of a volume."""
    return tf.nn.max_pool3d(tf.reshape(rows[:, :4], [1, 24, 2, 2, 1]), 2, 1, "SAME")


def of_halves(rows):
    """A batch is reshaped to two sequences."""
    return tf.nn.max_pool1d(tf.reshape(rows, [2, 12, 5]), 4, 2, "SAME")


def gradient(pooled):
    """The function's value and gradient for weights that tell each of its numbers apart."""

    def function(rows):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            value = pooled(rows)
            weights = tf.reshape(tf.sin(tf.range(tf.size(value), dtype=tf.float32)), value.shape)
            total = tf.reduce_sum(weights * value)
        return value, tape.gradient(total, rows)

    return function


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("pooled", [of_a_sequence, of_an_image, of_a_volume, of_halves])
def test_rows_that_windows_slide_over_have_one_device_s_gradient(on_devices, pooled, count):
    rows = tf.constant(ROWS)
    found = on_devices(count).partitioned(gradient(pooled))(rows)
    for each, expected in zip(found, gradient(pooled)(rows), strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-5)


def test_a_batch_of_images_stays_cut(on_devices):
    step = on_devices(4).partitioned(gradient(lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME")))
    step(tf.ones([8, 6, 6, 2]))
    exchanged = step.explain().collectives
    assert set(exchanged) <= {"all-gather"}  # what it returns is whole
    assert exchanged["all-gather"] == 2
