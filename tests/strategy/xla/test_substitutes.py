"""Operations that XLA has not are computed by others, wherever in a program they are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

from tfdp.strategy.xla.substitutes import gamma_drawn

RNG = np.random.default_rng(0)
IMAGES = RNG.random([6, 6, 6, 2]).astype("float32")
TARGETS = RNG.random([6, 3]).astype("float32")
TRANSFORMS = (np.eye(3).ravel()[:8] + RNG.normal(size=[6, 8]) * 0.01).astype("float32")


def turned_and_zoomed(strategy):
    """Trains a convolution in front of layers that transform what it gives."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        # Of a range of one value each draw is that value, whoever draws.
        moved = [layers.RandomRotation((0.1, 0.1)), layers.RandomZoom((0.2, 0.2), (-0.1, -0.1))]
        first, last = (
            [keras.Input([6, 6, 2]), layers.Conv2D(3, 2)],
            [layers.Flatten(), layers.Dense(3)],
        )
        model = keras.Sequential([*first, *moved, *last])
        model.compile("adam", "mse")
    model.fit(IMAGES, TARGETS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("count", tiers.first_of(3, 2))
def test_a_model_that_transforms_images_trains_as_on_one_device(on_devices, count):
    expected = turned_and_zoomed(tf.distribute.get_strategy())
    for found, weight in zip(turned_and_zoomed(on_devices(count)), expected, strict=True):
        np.testing.assert_allclose(found, weight, atol=2e-5)


def transformed(images, transforms):
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=tf.shape(images)[1:3],
        fill_value=0.5,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )


def in_a_loop(images, transforms, names):
    for _ in tf.range(3):
        images = transformed(images, transforms) + 0.1
    return images


def in_a_branch(images, transforms, names):
    if tf.reduce_sum(images) > 0.0:
        return transformed(images, transforms)
    return images


def one_by_one(images, transforms, names):
    def moved(each):
        return transformed(each[0][tf.newaxis], each[1][tf.newaxis])[0]

    return tf.map_fn(moved, (images, transforms), fn_output_signature=tf.float32)


def beside_strings(images, transforms, names):
    sizes = tf.cast(tf.strings.length(names), tf.float32)
    return transformed(images * sizes[:, tf.newaxis, tf.newaxis, tf.newaxis], transforms)


def in_a_gradient(images, transforms, names):
    with tf.GradientTape() as tape:
        tape.watch(images)
        loss = tf.reduce_sum(transformed(images, transforms) ** 2)
    return tape.gradient(loss, images)


@pytest.mark.parametrize(
    "function", [in_a_loop, in_a_branch, one_by_one, beside_strings, in_a_gradient]
)
def test_it_stands_wherever_the_operation_is(on_devices, function):
    given = IMAGES, TRANSFORMS, np.array(["a", "bb", "ccc", "a", "b", "cc"])
    expected = tf.function(function)(*map(tf.constant, given))
    found = on_devices(2).partitioned(function)(*map(tf.constant, given))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def drawn(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        mix = layers.MixUp(seed=3)
    step = strategy.partitioned(lambda images, labels: mix({"images": images, "labels": labels}))
    labels = tf.one_hot([0, 1, 2, 0, 1, 2], 3)
    return [step(tf.constant(IMAGES), labels) for _ in range(2)]


def test_all_devices_draw_together_and_each_step_anew(on_devices):
    expected = drawn(on_devices(1))
    for found, one in zip(drawn(on_devices(3)), expected, strict=True):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, one
        )
    first, second = expected
    assert np.abs(first["images"] - second["images"]).max() > 1e-3
    weights = first["labels"].numpy()
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=1e-5)
    assert ((weights > 0.001) & (weights < 0.999)).any()


def test_arguments_may_be_unused_or_returned_or_what_others_wait_for(on_devices):
    def step(images, transforms, unused, returned):
        with tf.control_dependencies([returned, unused]):
            return transformed(images, transforms), returned

    found, returned = on_devices(2).run(
        step, (tf.constant(IMAGES), tf.constant(TRANSFORMS), tf.ones([6]), tf.range(6.0))
    )
    np.testing.assert_allclose(found, transformed(IMAGES, TRANSFORMS), atol=1e-5)
    np.testing.assert_array_equal(returned, np.arange(6.0))


KEY, COUNTER, PHILOX = np.array([3], "uint64"), np.zeros([2], "uint64"), np.int32(1)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_draws_have_the_distributions_that_they_are_asked_for(is_compiled):
    alphas, count = tf.constant([0.2, 0.9, 1.0, 2.5, 40.0]), 20_000
    own = tf.function(gamma_drawn, jit_compile=is_compiled, autograph=False)
    found = np.sort(own(tf.constant([count, 5]), KEY, COUNTER, PHILOX, alphas), 0)
    expected = tf.math.igamma(alphas, found)  # the distribution function
    steps = (np.arange(count)[:, np.newaxis] + 0.5) / count
    # Kolmogorov and Smirnov: a right sampler is above this once in 10,000 times; these are fixed.
    assert np.abs(expected - steps).max() < 2.2 / np.sqrt(count)


def test_other_keys_and_counters_draw_other_numbers_and_the_same_ones_the_same():
    def at(key, counter):
        given = tf.constant([key], tf.uint64), tf.constant([counter, 0], tf.uint64)
        return gamma_drawn(tf.constant([50]), *given, PHILOX, tf.constant(2.0)).numpy()

    np.testing.assert_array_equal(at(1, 0), at(1, 0))
    for other in (at(2, 0), at(1, 10_000)):
        assert np.abs(np.corrcoef(at(1, 0), other)[0, 1]) < 0.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_draws_have_the_dtype_of_the_distributions(dtype):
    alpha = tf.cast([0.5, 3.0], dtype)
    found = gamma_drawn(tf.constant([1000, 2]), KEY, COUNTER, PHILOX, alpha)
    assert found.dtype == dtype
    means = np.mean(tf.cast(found, "float64"), 0)
    np.testing.assert_allclose(means, [0.5, 3.0], rtol=0.2)
