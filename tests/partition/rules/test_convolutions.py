import pytest
import tensorflow as tf
import tiers
from partition.check import check
from partition.drawn import of_drawn_batches
from partition.examples import gradients, in_shares, numbers
from partition.samples import sample

CONVOLUTIONS = {
    "1D": (lambda x, w: tf.nn.conv1d(x, w[0], 1, "SAME"), (6, 2), (1, 3, 2, 4)),
    "2D": (lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), (6, 5, 2), (3, 3, 2, 4)),
    "2D, padded": (
        lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [1, 2], [0, 1], [0, 0]]),
        (6, 5, 2),
        (3, 3, 2, 4),
    ),
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


@in_shares
@pytest.mark.parametrize(
    "kind",
    tiers.cases(CONVOLUTIONS, ["2D", "transposed 2D"]),
)
def test_convolutions_keep_rows_and_gradients_of_filters_are_summands(kind, length, replicas):
    convolution, image, kernel = CONVOLUTIONS[kind]

    def function(x):
        return gradients(convolution, x, tf.constant(numbers(*kernel)))

    report = check(function, numbers(length, *image), replicas=replicas)
    assert [each.kind for each in report.exchanged] == ["sum"]


@sample((4, 4, 2))
def test_second_gradients_of_convolutions_are_those_of_one_device(x):
    def first(x, w):
        return gradients(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), x, w)[1]

    return gradients(first, x, tf.constant(numbers(2, 2, 2, 3)))


@in_shares
@pytest.mark.parametrize("kind", tiers.first_of("max", "avg"))
def test_regions_that_are_drawn_are_the_same_on_all_replicas(kind, length, replicas):
    pool = {"max": tf.nn.fractional_max_pool, "avg": tf.nn.fractional_avg_pool}[kind]

    def function(x):
        pooled, rows, columns = pool(x, [1.0, 1.4, 1.7, 1.0], True)
        of_each = x[:, 0, 0] * 0 + tf.cast(rows, tf.float32)
        differences = tf.reduce_max(of_each, 0) - tf.reduce_min(of_each, 0)
        shape = tf.cast(tf.shape(pooled), tf.float32)
        return [shape, rows[0], rows[-1], columns[-1], differences]

    check(function, numbers(length, 8, 9, 1), replicas=replicas, whole=None)


@pytest.mark.parametrize("kind", tiers.first_of("max", "avg"))
def test_regions_that_are_fixed_are_pooled_whole(kind):
    pool = {"max": tf.nn.fractional_max_pool, "avg": tf.nn.fractional_avg_pool}[kind]

    def function(x):
        return gradients(lambda x: pool(x, [1.0, 1.4, 1.7, 1.0], True, seed=3)[0], x)

    check(function, numbers(7, 8, 9, 1), whole=None)


def test_what_mixes_pixels_that_are_the_examples_is_computed_whole():
    def function(x):
        turned = tf.transpose(x, [1, 0, 2, 3])  # images whose rows of pixels are the examples
        blocks = tf.concat([turned, turned * 2, -turned, turned + 1], 1)
        return [
            tf.image.adjust_contrast(turned, 0.3),
            tf.batch_to_space(blocks, [2, 2], [[0, 0], [0, 0]]),
            tf.nn.avg_pool2d(turned, 3, 1, "SAME"),
        ]

    whole = ["AdjustContrastv2", "AvgPool", "BatchToSpaceND"]
    check(function, numbers(7, 4, 6, 3) / 2, replicas=[3], whole=whole)


BLOCKS = {
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
@pytest.mark.parametrize("kind", tiers.first_of(*reversed(BLOCKS)))
def test_blocks_of_images_keep_rows(kind, length, replicas):
    def function(x):
        return gradients(BLOCKS[kind], x)

    check(function, numbers(length, 4, 6, 3), replicas=replicas)


@sample(
    (4, 6, 3),
    lambda length: numbers(length, 4) / 2,
    whole=None,
    layouts={"CropAndResize": {"sharded(axis 0 by batch_0)"}},
)
def test_boxes_are_cut_out_of_the_images_that_they_name(x, boxes):
    names = tf.reverse(tf.range(tf.shape(x)[0]), [0])
    return gradients(lambda x, boxes: tf.image.crop_and_resize(x, boxes, names, [2, 3]), x, boxes)


def test_a_gradient_of_images_that_was_computed_whole_is_added_to_others_by_rows():
    def function(x, boxes):
        def loss(x, boxes):
            names = tf.range(tf.shape(x)[0])
            cut = tf.image.crop_and_resize(x, boxes, names, [2, 3])
            return tf.reduce_sum(cut, [1, 2]) + tf.reduce_sum(x * x, [1, 2])

        return gradients(loss, x, boxes)

    report = check(function, numbers(7, 4, 6, 3), numbers(7, 4) / 2, whole=None)
    assert not {each.operation for each in report.exchanged} & {"AddN", "Add", "AddV2"}


@sample((3, 4, 5, 2))
def test_images_in_more_dimensions_are_convolved_as_rows(x):
    def convolution(x, w):
        return tf.nn.convolution(x, w, padding="SAME")

    merged = tf.reshape(x, [-1, 4, 5, 2])
    return gradients(convolution, merged, tf.constant(numbers(3, 3, 2, 4)))


@sample((4, 4, 2))
def test_filters_of_the_batch_make_a_convolution_whole(x):
    return tf.nn.conv2d(x, tf.transpose(x, [1, 2, 3, 0]), 1, "VALID")


# The batch is along the images' rows, alone or merged with another axis.
of_drawn_rows = of_drawn_batches(orders=[(0, 1, 2), (1, 0, 2)], merges=[((0, 1), (2,))])


def images(t, *sizes):
    """Images of these sizes, one of each row."""
    first = tf.reshape(tf.reduce_sum(t, 1), [-1, *[1] * len(sizes)])
    return tf.sin(first * numbers(*sizes))


def drawn_sizes(case, number):
    return [case.choose([4, 5, 3, 7]) for _ in range(number)]


@of_drawn_rows
def test_convolutions_of_any_strides_and_padding_are_those_of_one_device(case):
    height, width, depth = drawn_sizes(case, 3)
    kernel, stride, channels = case.choose([2, 3, 1]), case.choose([1, 2]), case.choose([2, 1])
    padding = case.choose(["SAME", "VALID"])
    given = case.choose([[[0, 0], [1, 2], [0, 1], [0, 0]], padding])
    missing = case.choose(range(stride))  # from the largest size that a transposed one may have
    strides = [1, stride, stride, 1]

    def filters(rank, inner, outer):
        return tf.constant(numbers(*[kernel] * rank, inner, outer))

    def larger(x):
        same = padding == "SAME"
        sizes = [n * stride - missing if same else (n - 1) * stride + kernel for n in x.shape[1:-1]]
        return [tf.shape(x)[0], *sizes, 3]

    def function(t):
        line, plane = images(t, width, channels), images(t, height, width, channels)
        space = images(t, depth, height, 3, channels)
        three = [1, *[stride] * 3, 1]
        return [
            gradients(
                lambda x, w: tf.nn.conv1d(x, w, stride, padding), line, filters(1, channels, 3)
            ),
            gradients(
                lambda x, w: tf.nn.conv2d(x, w, stride, given), plane, filters(2, channels, 3)
            ),
            gradients(
                lambda x, w: tf.nn.depthwise_conv2d(x, w, strides, given),
                plane,
                filters(2, channels, 2),
            ),
            gradients(
                lambda x, w: tf.nn.conv2d_transpose(x, w, larger(x), stride, padding),
                plane,
                filters(2, 3, channels),
            ),
            gradients(
                lambda x, w: tf.nn.conv3d(x, w, three, padding), space, filters(3, channels, 2)
            ),
            gradients(
                lambda x, w: tf.nn.conv3d_transpose(x, w, larger(x), stride, padding),
                space,
                filters(3, 3, channels),
            ),
            gradients(
                lambda x, w: tf.nn.dilation2d(x, w[..., 0], strides, padding, "NHWC", [1] * 4),
                plane,
                filters(2, channels, 1),
            ),
        ]

    case.check(function, whole=[])


@of_drawn_rows
def test_operands_of_convolutions_may_be_whole_cut_or_summands(case):
    turned = case.choose([0, 1, 3, 2])  # the axis of the images that takes the place of the rows
    sizes = [3, 3, 3]

    def function(t):
        order = [turned if at == 0 else 0 if at == turned else at for at in range(4)]
        cut, whole = images(t, *sizes), images(tf.cumsum(t), *sizes)
        filters = tf.stack([tf.reduce_sum(cut, 0), tf.reduce_mean(whole, 0)])
        options = {"strides": [1] * 4, "padding": "SAME"}
        exchanged = tf.transpose(cut, order)
        found = [tf.nn.max_pool2d(exchanged, 2, 1, "SAME")]
        if turned != 3:  # else the number of channels is that of rows
            found.append(tf.nn.conv2d(exchanged, numbers(2, 2, 3, 2), **options))
        for x, y in ((cut, whole), (whole, cut), (cut, cut)):
            both = {**options, "out_backprop": tf.sin(3 * y)}
            found += [
                tf.nn.conv2d(x, filters, 1, "SAME"),
                tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=[2, 3, 3, 3], **both),
                tf.raw_ops.Conv2DBackpropInput(input_sizes=tf.shape(x), filter=filters, **both),
                tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
                    input=x, filter_sizes=[2, 2, 3, 1], **both
                ),
                tf.raw_ops.Dilation2DBackpropInput(
                    input=x, filter=filters[:, :, 0], rates=[1] * 4, **both
                ),
                tf.raw_ops.Dilation2DBackpropFilter(
                    input=x, filter=filters[:, :, 0], rates=[1] * 4, **both
                ),
                tf.raw_ops.MaxPoolGrad(
                    orig_input=x,
                    orig_output=tf.nn.max_pool2d(x, 2, 1, "SAME"),
                    grad=y,
                    ksize=[1, 2, 2, 1],
                    **options,
                ),
                tf.raw_ops.LRNGrad(
                    input_grads=y, input_image=x, output_image=tf.nn.local_response_normalization(x)
                ),
            ]
        return found

    case.check(function)


@of_drawn_rows
def test_blocks_of_any_images_are_moved_as_on_one_device(case):
    blocks = [case.choose([2, 3, 1]) for _ in range(2)]
    rates = [case.choose([1, 2]) for _ in range(2)]
    times = [case.choose([1, 2]) for _ in range(2)]
    before = [case.choose(range(block)) for block in blocks]
    pads = [[n, 2 * block - n] for n, block in zip(before, blocks, strict=True)]
    crops = [[n, case.choose([0, 1])] for n in before]
    padding = case.choose(["SAME", "VALID"])

    def function(t):
        x = images(t, *(n * block for n, block in zip(times, blocks, strict=True)), 4)
        moved = tf.space_to_batch(x, blocks, pads)
        pooled = tf.nn.max_pool2d(moved, 2, 1, "SAME") * tf.reduce_sum(x)
        square = images(t, 4, 2, 4)

        def patches(x):
            return tf.image.extract_patches(
                x, [1, 2, 1, 1], [1, *rates, 1], [1, *rates[::-1], 1], padding
            )

        def there_and_back(x):
            return tf.batch_to_space(tf.tanh(tf.space_to_batch(x, blocks, pads)), blocks, crops)

        return [
            moved,
            pooled,
            tf.reduce_sum(pooled, 0),
            tf.batch_to_space(pooled, blocks, crops),
            tf.batch_to_space(tf.tile(x, [blocks[0] * blocks[1], 1, 1, 1]), blocks, crops),
            tf.batch_to_space(pooled, blocks[:1], crops[:1]),
            tf.space_to_batch(moved, [2], [[0, moved.shape[1] % 2]]),
            gradients(there_and_back, x),
            gradients(patches, images(t, 5, 4, 2)),
            gradients(lambda x: tf.nn.space_to_depth(x, 2), square),
            gradients(lambda x: tf.nn.depth_to_space(x, 2), square),
            tf.raw_ops.SpaceToBatch(input=square, paddings=[[0, 2], [1, 1]], block_size=2),
            tf.raw_ops.BatchToSpace(
                input=tf.raw_ops.SpaceToBatch(input=square, paddings=[[0] * 2] * 2, block_size=2),
                crops=[[1, 0], [0, 1]],
                block_size=2,
            ),
        ]

    case.check(function)
