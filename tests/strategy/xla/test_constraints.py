"""Operations whose operands XLA's partitioner would cut in a way in which it computes otherwise."""

import numpy as np
import pytest
import tensorflow as tf
import tiers

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


def check(strategy, function, *given):
    """Holds what the function makes on the devices against what it makes without them."""
    found = strategy.partitioned(function)(*given)
    for each, expected in zip(found, function(*given), strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", tiers.first_of(3, 2, 4))
@pytest.mark.parametrize("pooled", [of_a_sequence, of_an_image, of_a_volume, of_halves])
def test_rows_that_windows_slide_over_have_one_device_s_gradient(on_devices, pooled, count):
    check(on_devices(count), gradient(pooled), tf.constant(ROWS))


def gradients_of_kernel(convolved):
    """The gradients of images and of a kernel for weights that tell each number apart."""

    def function(images, kernel):
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            value = convolved(images, kernel)
            weights = tf.reshape(tf.sin(tf.range(tf.size(value), dtype=tf.float32)), value.shape)
            total = tf.reduce_sum(weights * value)
        return tape.gradient(total, [images, kernel])

    return function


def depthwise(images, kernel):
    """A convolution of each channel by itself."""
    return tf.nn.depthwise_conv2d(images, kernel, [1, 1, 1, 1], "SAME")


CONVOLUTIONS = {
    "depthwise": depthwise,
    "in groups": lambda images, kernel: tf.nn.conv2d(images, kernel[:, :, :2], 1, "SAME"),
    "depthwise, of the mean of pairs": lambda images, kernel: depthwise(
        tf.reduce_mean(tf.reshape(images, [-1, 2, 4, 4, 4]), 1), kernel
    ),
    "depthwise, of a half less another": lambda images, kernel: depthwise(
        images[: len(images) // 2] - images[len(images) // 2 :], kernel
    ),
    "of an image of rows": lambda images, kernel: tf.nn.conv2d(
        images[None, :, 0], kernel, 1, "SAME"
    ),
}


@pytest.mark.parametrize(("rows", "count"), tiers.first_of((12, 8), (16, 8), (12, 4), (6, 4)))
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernels_have_one_device_s_gradient_of_any_number_of_rows(on_devices, name, rows, count):
    draw = np.random.default_rng(0).normal
    images, kernel = draw(size=[rows, 4, 4, 4]), draw(size=[3, 3, 4, 2])
    given = [tf.constant(each, tf.float32) for each in (images, kernel)]
    check(on_devices(count), gradients_of_kernel(CONVOLUTIONS[name]), *given)


@pytest.mark.parametrize("rows", [8, 12])
@pytest.mark.parametrize("kept", [tf.tensor_scatter_nd_max, tf.tensor_scatter_nd_min])
def test_the_largest_and_smallest_of_what_is_scattered_is_kept(on_devices, kept, rows):
    def function(x):
        return (kept(x, [[1], [5], [1]], 3 * x[:3]),)

    check(on_devices(8), function, tf.constant(ROWS[:rows]))


def test_a_depthwise_kernel_s_gradient_is_summed_and_no_image_gathered(on_devices):
    step = on_devices(4).partitioned(lambda x, k: gradients_of_kernel(depthwise)(x, k)[1])
    step(tf.ones([8, 6, 6, 2]), tf.ones([3, 3, 2, 1]))
    assert step.explain().collectives == {"all-reduce": 1}


def test_a_batch_of_images_stays_cut(on_devices):
    step = on_devices(4).partitioned(gradient(lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME")))
    step(tf.ones([8, 6, 6, 2]))
    exchanged = step.explain().collectives
    assert set(exchanged) <= {"all-gather"}  # what it returns is whole
    assert exchanged["all-gather"] == 2


OF_KERNELS = {
    **{name: CONVOLUTIONS[name] for name in CONVOLUTIONS if "pairs" not in name},
    "plain": lambda images, kernel: tf.nn.conv2d(images, kernel, 1, "SAME"),
    "strided": lambda images, kernel: tf.nn.conv2d(images, kernel, 2, "SAME"),
    "dilated": lambda images, kernel: tf.nn.conv2d(images, kernel, 1, "SAME", dilations=2),
    "transposed": lambda images, kernel: tf.nn.conv2d_transpose(
        images, kernel, [len(images), 8, 8, kernel.shape[2]], 2, "SAME"
    ),
}


@pytest.mark.parametrize(("batch", "model"), tiers.first_of((2, 4), (4, 2), (1, 8)))
@pytest.mark.parametrize("name", tiers.cases(list(OF_KERNELS), ["plain", "depthwise"]))
def test_kernels_that_are_sharded_have_one_device_s_gradient(on_devices, name, batch, model):
    draw = np.random.default_rng(0).normal
    images, kernel = draw(size=[16, 4, 4, 8]), draw(size=[8, 8, 8, 8])
    images, kernel = (tf.constant(each, tf.float32) for each in (images, kernel))
    expected = gradients_of_kernel(OF_KERNELS[name])(images, kernel)
    mesh = {"batch": batch, "model": model}
    for axis in range(4):
        axes = tuple("model" if place == axis else None for place in range(4))
        strategy = on_devices(8, mesh=mesh, layout_map={"kernel": axes})
        with strategy.scope():
            variable = tf.Variable(kernel, name="kernel")

        @strategy.partitioned
        def step(images, variable=variable):
            of_images, of_kernel = gradients_of_kernel(OF_KERNELS[name])(images, variable.value())
            variable.assign_sub(of_kernel)
            return of_images

        found = step(images)
        assert variable._array.sharding.spec[axis] == "model"
        np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(kernel - variable, expected[1], rtol=1e-5, atol=1e-3)


def kept_of_rows(x):
    return (tf.tensor_scatter_nd_max(x, [[1], [5], [1]], 3 * x[:3]),)


ON_TWO_AXES = {
    **{name: gradients_of_kernel(convolved) for name, convolved in CONVOLUTIONS.items()},
    **{each.__name__: gradient(each) for each in (of_a_sequence, of_an_image, of_a_volume)},
    "of_halves": gradient(of_halves),
    "kept": kept_of_rows,
}


@pytest.mark.parametrize(("batch", "model"), tiers.first_of((4, 2), (2, 4)))
@pytest.mark.parametrize("name", tiers.cases(list(ON_TWO_AXES), ["depthwise", "of_halves"]))
def test_they_are_one_device_s_where_several_devices_have_each_row(on_devices, name, batch, model):
    strategy = on_devices(8, mesh={"batch": batch, "model": model})
    given = [[tf.constant(ROWS)]]
    if name in CONVOLUTIONS:
        draw = np.random.default_rng(0).normal
        kernel = tf.constant(draw(size=[3, 3, 4, 2]), tf.float32)
        images = [tf.constant(draw(size=[rows, 4, 4, 4]), tf.float32) for rows in (8, 12)]
        given = [[each, kernel] for each in images]
    for each in given:
        check(strategy, ON_TWO_AXES[name], *each)
