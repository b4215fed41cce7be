"""What the host must know of a share it need not read from a GPU's memory."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.communication.replicas import KnownLengths, batch_shard

LARGEST, LEAST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize("numbers", [[0, 3, 4, 7], [LARGEST, LEAST, -1, 2**32, 5]])
def test_a_shape_tells_numbers(numbers):
    shares = tf.data.Dataset.from_tensors((tf.ones([2, 3]), tf.constant(numbers, tf.int64)))
    told = batch_shard.told_by_shapes(shares)
    ((rows, place),) = told
    assert rows.shape == (2, 3) and tf.size(place) == 0
    read = batch_shard.read_place(place)
    assert read.numpy().tolist() == numbers
    spec = batch_shard.read_place(told.element_spec[1])
    assert spec.is_compatible_with(read) and spec.shape == read.shape


def test_what_is_known_of_lengths_stays_as_it_is():
    place = tf.constant([1, 2, 3, 4, 5, 7], tf.int64)
    shares = tf.data.Dataset.from_tensors((tf.ones([1]), place, KnownLengths((5, -1))))
    ((_, told, known),) = batch_shard.told_by_shapes(shares)
    assert batch_shard.read_place(told).numpy().tolist() == [1, 2, 3, 4, 5, 7]
    assert known.lengths == (5, -1)


def test_more_numbers_than_a_shape_has_axes_for_stay_numbers():
    numbers = tf.range(127, dtype=tf.int64)
    ((_, place),) = batch_shard.told_by_shapes(tf.data.Dataset.from_tensors((1, numbers)))
    np.testing.assert_array_equal(batch_shard.read_place(place), numbers)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("feed", [False, True], ids=["dataset", "feed"])
def test_training_by_them_is_that_of_one_device(feed, steps, monkeypatch):
    x = np.random.default_rng(0).normal(size=(15, 3)).astype("f")

    def build():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps)
        return model

    def trained(replicas):
        model = harness.build_in_scope(build, replicas)
        batches = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(4)
        if feed:
            batches = tfdp.data.pipeline((x, x[:, 0]), global_batch_size=4, seed=1)
        model.fit(batches, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    expected = trained(None)
    told = []

    def noted(shares):
        told.append(shares)
        return wrapped(shares)

    wrapped = batch_shard.told_by_shapes
    monkeypatch.setattr(batch_shard, "need_shapes", lambda devices: True)
    monkeypatch.setattr(batch_shard, "told_by_shapes", noted)
    for weight, one in zip(trained(harness.THREE), expected, strict=True):
        np.testing.assert_allclose(weight, one, rtol=1e-5, atol=1e-6)
    assert told
