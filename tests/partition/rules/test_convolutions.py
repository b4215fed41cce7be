import pytest
import tensorflow as tf
import tiers
from partition.check import check
from partition.examples import gradients, in_shares, numbers

CONVOLUTIONS = {
    "1D": (lambda x, w: tf.nn.conv1d(x, w[0], 1, "SAME"), (6, 2), (1, 3, 2, 4)),
    "causal 1D, dilated": (
        lambda x, w: tf.nn.conv1d(
            tf.pad(x, [[0, 0], [4, 0], [0, 0]]), w[0], 1, "VALID", dilations=2
        ),
        (6, 2),
        (1, 3, 2, 4),
    ),
    "2D": (lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), (6, 5, 2), (3, 3, 2, 4)),
    "2D, padded": (
        lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [1, 2], [0, 1], [0, 0]]),
        (6, 5, 2),
        (3, 3, 2, 4),
    ),
    "2D, dilated": (
        lambda x, w: tf.nn.conv2d(x, w, 1, "VALID", dilations=2),
        (6, 7, 2),
        (3, 3, 2, 4),
    ),
    "2D, in groups": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (4, 4, 4), (3, 3, 2, 6)),
    "3D": (lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), (3, 4, 5, 2), (2, 2, 2, 2, 3)),
    "by channel": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"),
        (6, 5, 2),
        (3, 3, 2, 2),
    ),
    "by channel, dilated": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "VALID", dilations=[2, 2]),
        (6, 7, 2),
        (3, 3, 2, 2),
    ),
    "transposed 2D": (
        lambda x, w: tf.nn.conv2d_transpose(x, w, [tf.shape(x)[0], 6, 6, 3], 2),
        (3, 3, 2),
        (2, 2, 3, 2),
    ),
    "transposed 3D": (
        lambda x, w: tf.nn.conv3d_transpose(x, w, [tf.shape(x)[0], 4, 4, 4, 3], 2),
        (2, 2, 2, 2),
        (2, 2, 2, 3, 2),
    ),
    "dilation": (
        lambda x, w: tf.nn.dilation2d(x, w[..., 0], [1] * 4, "SAME", "NHWC", [1] * 4),
        (6, 5, 2),
        (3, 3, 2, 1),
    ),
}


# TensorFlow has no gradients of these on CPUs.
FORWARD = ["causal 1D, dilated", "2D, dilated", "2D, in groups"]


@in_shares
@pytest.mark.parametrize("kind", tiers.first_of(*FORWARD))
def test_dilated_and_grouped_convolutions_keep_rows(kind, length, replicas):
    convolution, image, kernel = CONVOLUTIONS[kind]
    report = check(
        lambda x: convolution(x, numbers(*kernel)), numbers(length, *image), replicas=replicas
    )
    assert not report.exchanged


@in_shares
@pytest.mark.parametrize(
    "kind",
    tiers.cases([kind for kind in CONVOLUTIONS if kind not in FORWARD], ["2D", "transposed 2D"]),
)
def test_convolutions_keep_rows_and_gradients_of_filters_are_summands(kind, length, replicas):
    convolution, image, kernel = CONVOLUTIONS[kind]

    def function(x):
        return gradients(convolution, x, tf.constant(numbers(*kernel)))

    report = check(function, numbers(length, *image), replicas=replicas)
    assert [each.kind for each in report.exchanged] == ["sum"]


@in_shares
def test_second_gradients_of_convolutions_are_those_of_one_device(length, replicas):
    def function(x):
        def first(x, w):
            return gradients(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), x, w)[1]

        return gradients(first, x, tf.constant(numbers(2, 2, 2, 3)))

    check(function, numbers(length, 4, 4, 2), replicas=replicas)


POOLING = {
    "largest": lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
    "largest, same": lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME"),
    "mean": lambda x: tf.nn.avg_pool2d(x, 2, 1, "SAME"),
    "largest of sizes": lambda x: tf.raw_ops.MaxPoolV2(
        input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"
    ),
    "largest, with places": lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID")[0],
    "largest 3D": lambda x: tf.nn.max_pool3d(x[..., tf.newaxis], 2, 2, "VALID"),
    "mean 3D": lambda x: tf.nn.avg_pool3d(x[..., tf.newaxis], 2, 2, "VALID"),
    "response": lambda x: tf.nn.local_response_normalization(x, 1, 1.0, 0.5, 0.7),
}


@in_shares
@pytest.mark.parametrize("kind", tiers.cases(POOLING, ["largest", "mean"]))
def test_pooling_and_its_gradients_keep_rows(kind, length, replicas):
    def function(x):
        return gradients(POOLING[kind], x)

    report = check(function, numbers(length, 4, 6, 3), replicas=replicas)
    assert not report.exchanged


@in_shares
@pytest.mark.parametrize(
    "kind", tiers.first_of("largest", "largest of sizes", "mean", "largest 3D", "mean 3D")
)
def test_second_gradients_of_pooling_keep_rows(kind, length, replicas):
    def function(x):
        return gradients(lambda x: gradients(POOLING[kind], x)[1], x)

    report = check(function, numbers(length, 4, 4, 2), replicas=replicas)
    assert not report.exchanged


@in_shares
def test_places_of_maxima_are_those_within_an_image(length, replicas):
    check(
        lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID"),
        numbers(length, 4, 4, 2),
        replicas=replicas,
    )


def test_places_of_maxima_within_the_batch_are_computed_whole():
    def function(x):
        return tf.nn.max_pool_with_argmax(x, 2, 2, "VALID", include_batch_in_index=True)

    check(function, numbers(7, 4, 4, 2), whole=["MaxPoolWithArgmax"])


@in_shares
@pytest.mark.parametrize("kind", tiers.first_of("max", "avg"))
def test_regions_that_are_drawn_are_the_same_on_all_replicas(kind, length, replicas):
    pool = {"max": tf.nn.fractional_max_pool, "avg": tf.nn.fractional_avg_pool}[kind]

    def function(x):
        pooled, rows, columns = pool(x, [1.0, 1.4, 1.7, 1.0], True)
        return [tf.cast(tf.shape(pooled), tf.float32), rows[0], rows[-1], columns[-1]]

    check(function, numbers(length, 8, 9, 1), replicas=replicas, whole=None)


@pytest.mark.parametrize("kind", tiers.first_of("max", "avg"))
def test_regions_that_are_fixed_are_pooled_whole(kind):
    pool = {"max": tf.nn.fractional_max_pool, "avg": tf.nn.fractional_avg_pool}[kind]

    def function(x):
        return gradients(lambda x: pool(x, [1.0, 1.4, 1.7, 1.0], True, seed=3)[0], x)

    check(function, numbers(7, 8, 9, 1), whole=None)


def resized(method, antialias=False):
    return lambda x: tf.image.resize(x, [7, 9], method, antialias=antialias)


IMAGES = {
    "blocks of pixels to channels": lambda x: tf.nn.space_to_depth(x, 2),
    "channels to blocks of pixels": lambda x: tf.nn.depth_to_space(
        tf.concat([x, x * 2, x * 3, x * 4], 3), 2
    ),
    "patches": lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1] * 4, "SAME"),
    "patches 3D": lambda x: tf.extract_volume_patches(
        x[..., tf.newaxis], [1, 2, 2, 2, 1], [1, 1, 1, 1, 1], "SAME"
    ),
    "bilinear": resized("bilinear"),
    "bicubic": resized("bicubic"),
    "nearest": resized("nearest"),
    "lanczos": resized("lanczos3"),
    "smooth": resized("bilinear", antialias=True),
    "blocks of pixels to examples": lambda x: tf.sin(
        tf.space_to_batch(x, [2, 3], [[0, 0], [1, 2]])
    ),
    "blocks there and back": lambda x: tf.batch_to_space(
        tf.nn.max_pool2d(tf.space_to_batch(x, [2, 3], [[0, 0], [1, 2]]), 2, 1, "SAME"),
        [2, 3],
        [[0, 0], [0, 1]],
    ),
}


@in_shares
@pytest.mark.parametrize("kind", tiers.cases(IMAGES, ["bilinear", "blocks there and back"]))
def test_images_keep_rows(kind, length, replicas):
    def function(x):
        if kind == "patches 3D":  # TensorFlow has no gradient of them
            return IMAGES[kind](x)
        return gradients(IMAGES[kind], x)

    check(function, numbers(length, 4, 6, 3), replicas=replicas)


COLORS = {
    "contrast": lambda x: tf.image.adjust_contrast(x, 0.3),
    "hue": lambda x: tf.image.adjust_hue(x, 0.3),
    "saturation": lambda x: tf.image.adjust_saturation(x, 0.3),
    "to hsv": tf.image.rgb_to_hsv,
    "from hsv": tf.image.hsv_to_rgb,
    "area": resized("area"),
    "boxes": lambda x: tf.image.draw_bounding_boxes(
        x, x[:, :2, 0, :1] * [0.1, 0.2, 0.5, 0.6], [[1.0, 0.0, 0.5]]
    ),
}


@in_shares
@pytest.mark.parametrize("kind", tiers.first_of(*COLORS))
def test_changes_of_images_keep_rows(kind, length, replicas):
    report = check(COLORS[kind], numbers(length, 4, 6, 3) / 2, replicas=replicas)
    assert not report.exchanged


@in_shares
def test_images_are_transformed_each_by_its_own_matrix_or_all_by_one(length, replicas):
    def function(x, moves):
        each = tf.concat([moves, tf.zeros([tf.shape(x)[0], 2])], 1)
        arguments = {"fill_mode": "NEAREST", "interpolation": "BILINEAR"}

        def transformed(x, matrices):
            return tf.raw_ops.ImageProjectiveTransformV3(
                images=x, transforms=matrices, output_shape=[5, 4], fill_value=0.0, **arguments
            )

        return [
            *gradients(lambda x: transformed(x, each), x),
            *gradients(lambda x: transformed(x, [[1.0, 0.1, 0.2, 0.3, 1.0, 0.4, 0.0, 0.0]]), x),
        ]

    check(function, numbers(length, 4, 6, 3), numbers(length, 6), replicas=replicas)


@in_shares
def test_boxes_are_cut_out_of_the_images_that_they_name(length, replicas, layouts):
    def function(x, boxes):
        names = tf.reverse(tf.range(tf.shape(x)[0]), [0])
        return gradients(
            lambda x, boxes: tf.image.crop_and_resize(x, boxes, names, [2, 3]), x, boxes
        )

    check(function, numbers(length, 4, 6, 3), numbers(length, 4) / 2, replicas=replicas, whole=None)
    assert layouts["CropAndResize"] == {"sharded(axis 0 by batch_0)"}


@in_shares
def test_images_in_more_dimensions_are_convolved_as_rows(length, replicas):
    def function(x):
        def convolution(x, w):
            return tf.nn.convolution(x, w, padding="SAME")

        merged = tf.reshape(x, [-1, 4, 5, 2])
        return gradients(convolution, merged, tf.constant(numbers(3, 3, 2, 4)))

    check(function, numbers(length, 3, 4, 5, 2), replicas=replicas)


@in_shares
def test_a_convolution_with_several_axes_of_rows_keeps_any_of_them(length, replicas):
    def function(x):
        def convolution(x):
            return tf.raw_ops.Conv(
                input=x,
                filter=numbers(3, 3, 2, 4),
                strides=[1] * 4,
                padding="SAME",
                batch_dims=2,
                dilations=[1] * 4,
            )

        return [convolution(x), convolution(tf.transpose(x, [1, 0, 2, 3, 4]))]

    check(function, numbers(length, 3, 4, 5, 2), replicas=replicas)


@in_shares
def test_filters_of_the_batch_make_a_convolution_whole(length, replicas):
    def function(x):
        return tf.nn.conv2d(x, tf.transpose(x, [1, 2, 3, 0]), 1, "VALID")

    check(function, numbers(length, 4, 4, 2), replicas=replicas)
