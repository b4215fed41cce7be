import pytest
import tensorflow as tf
from partition.check import check, compare, strategy
from partition.drawn import of_drawn_batches
from partition.examples import gradients, in_shares, numbers, of_any_axes
from partition.samples import sample


@in_shares
@pytest.mark.parametrize("sizes", [(4,), (2, 3, 4)])
def test_biases_are_added_to_rows_and_their_gradients_are_summands(sizes, length, replicas):
    def function(x):
        return gradients(tf.nn.bias_add, x, tf.constant(numbers(4)))

    report = check(function, numbers(length, *sizes), replicas=replicas)
    assert [each.kind for each in report.exchanged] == ["sum"]


@sample((3, 2, 4))
def test_biases_of_channels_in_front_are_added_to_rows(x):
    return gradients(
        lambda x, bias: tf.nn.bias_add(x, bias, "NC..") * x, x, tf.constant(numbers(3))
    )


@sample((3, 4), layouts={"BiasAdd": {"sharded(axis 1 by batch_0)"}, "BiasAddGrad": {"partial"}})
def test_biases_are_added_whatever_axis_the_batch_has(x):
    def added(x, bias):
        return tf.nn.bias_add(tf.transpose(x, [1, 0, 2]), bias)

    return gradients(added, x, tf.constant(numbers(4)))


@sample((3, 4), layouts={"BiasAddGrad": {"partial"}})
def test_the_gradient_of_biases_of_a_summand_is_a_summand(x):
    return tf.raw_ops.BiasAddGrad(out_backprop=tf.reduce_sum(x, 0))


@sample((4,))
def test_cross_entropy_between_all_pairs_of_examples_keeps_rows(x):
    def losses(x):
        logits = tf.matmul(x, x, transpose_b=True)
        classes = tf.range(tf.shape(x)[0])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)

    return gradients(losses, x)


@in_shares
def test_normalization_by_given_statistics_keeps_rows(length, replicas, layouts):
    def function(x):
        def normalized(x, scale, offset):
            return tf.compat.v1.nn.fused_batch_norm(
                x, scale, offset, numbers(3) - 0.5, numbers(3), is_training=False
            )[0]

        return gradients(normalized, x, tf.constant(numbers(3)), tf.constant(numbers(3)))

    report = check(function, numbers(length, 2, 4, 3), replicas=replicas)
    assert [each.kind for each in report.exchanged] == ["sum"]
    assert "partial" in layouts["FusedBatchNormGradV3"]


def test_normalization_by_the_statistics_of_the_batch_is_computed_whole():
    def function(x):
        def normalized(x, scale, offset):
            return tf.compat.v1.nn.fused_batch_norm(x, scale, offset)[0]

        return gradients(normalized, x, tf.constant(numbers(3)), tf.constant(numbers(3)))

    whole = ["FusedBatchNormV3", "FusedBatchNormGradV3"]
    x = numbers(7, 2, 4, 3)
    check(function, x, replicas=[3], whole=whole)
    partitioned = strategy(3).partitioned(function, input_signature=[tf.TensorSpec(x.shape)])
    compare(function(tf.constant(x)), partitioned(x), "a batch of fixed length")


@sample((2, 4))
def test_examples_that_are_channels_are_normalized_each_by_itself(x):
    def normalized(x):  # as layer normalization in one operation does it
        channels = tf.reshape(x, [1, tf.shape(x)[0] * 2, -1, 1])
        ones = tf.ones([tf.shape(x)[0] * 2])
        found = tf.compat.v1.nn.fused_batch_norm(
            channels, ones, 0 * ones, data_format="NCHW", epsilon=1e-2
        )
        return tf.reshape(found[0], tf.shape(x))

    return gradients(normalized, x)


@in_shares
def test_examples_that_are_channels_without_a_number_stay_cut(length, replicas, layouts):
    def function(x):
        scale = x[:, 0]
        found = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x[:, :0], [1, tf.shape(x)[0], 0, 1]),
            scale=scale,
            offset=scale,
            mean=scale,
            variance=scale,
            data_format="NCHW",
            is_training=False,
        )
        return found.y, found.batch_mean

    check(function, numbers(length, 4), replicas=replicas)
    assert "sharded(axis 1 by batch_0)" in layouts["FusedBatchNormV3"]


@sample(numbers(7, 4), replicas=[3], whole=["FusedBatchNormGradV3"])
def test_what_a_normalization_of_channels_keeps_is_whole_where_the_program_made_it(x):
    channels = tf.reshape(x, [1, tf.shape(x)[0], 4, 1])
    found = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=tf.cos(channels),
        x=channels,
        scale=x[:, 0],
        reserve_space_1=tf.reduce_mean(x, 1),
        reserve_space_2=tf.math.reduce_variance(x, 1),
        reserve_space_3=tf.zeros([0]),
        data_format="NCHW",
    )
    return found[:3]


@sample(numbers(7, 4), replicas=[3], whole=None)
def test_a_scale_of_any_number_of_axes_normalizes_examples_that_are_channels(x):
    def normalized(x):
        scale = of_any_axes(x[:, 0])
        return tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, [1, tf.shape(x)[0], 4, 1]),
            scale=scale,
            offset=scale,
            mean=[],
            variance=[],
            data_format="NCHW",
        ).y

    return gradients(normalized, x)


@sample((3, 4))
def test_moments_of_the_batch_are_summed(x):
    def normalized(x, scale, offset):
        mean, variance = tf.nn.moments(x, [0, 1])
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-2)

    return gradients(normalized, x, tf.constant(numbers(4)), tf.constant(numbers(4)))


@of_drawn_batches
def test_biases_and_classes_are_those_of_one_device_wherever_the_batch_is(case):
    if case.rank == 1:
        return
    width = case.shape[-1]

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        bias = tf.reduce_max(whole % 7, range(case.rank - 1))
        front = tf.reduce_max(whole % 5, [axis for axis in range(case.rank) if axis != 1])
        rows, all_rows = (tf.reshape(each, [-1, width]) % 5 for each in (t, whole))
        classes = tf.cast(tf.reduce_max(rows, 1), tf.int32) % width
        raw = tf.raw_ops
        in_front = (
            [
                raw.BiasAdd(value=t, bias=front, data_format="NCHW"),
                raw.BiasAddGrad(out_backprop=t, data_format="NCHW"),
            ]
            if case.rank == 3
            else []
        )
        return (
            *in_front,
            raw.BiasAdd(value=t, bias=bias),
            raw.BiasAddV1(value=t, bias=bias),
            raw.BiasAddGrad(out_backprop=t),
            tf.nn.softmax(t % 5),
            raw.SoftmaxCrossEntropyWithLogits(features=rows, labels=all_rows),
            raw.SoftmaxCrossEntropyWithLogits(features=all_rows[:1], labels=rows),
            raw.SparseSoftmaxCrossEntropyWithLogits(features=all_rows, labels=classes),
        )

    case.check(
        function,
        whole=[
            "Cumsum",
            "BiasAdd",
            "Reshape",
            "BiasAddV1",
            "BiasAddGrad",
            "Softmax",
            "StridedSlice",
            "SoftmaxCrossEntropyWithLogits",
            "SparseSoftmaxCrossEntropyWithLogits",
        ],
    )


@in_shares
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (3, 1, 2, 0)], ids=str)
def test_fused_normalization_is_one_devices_wherever_the_batch_is(
    order, training, length, replicas
):
    def function(x):
        def normalized(x):
            y = tf.transpose(x, order)
            scale = tf.cos(tf.reduce_mean(y, [0, 1, 2]))
            found = tf.raw_ops.FusedBatchNormV3(
                x=y,
                scale=scale,
                offset=scale / 2,
                mean=[] if training else scale / 4,
                variance=[] if training else scale**2 + 1,
                is_training=training,
            )
            return found.y * y

        return gradients(normalized, x)

    report = check(function, numbers(length, 3, 2, 4), replicas=replicas, whole=None)
    assert bool(report.whole) == (training and order[3] != 0)  # statistics of the batch


@sample(numbers(7, 4), replicas=[3], whole=["BiasAddGrad"])
def test_gradients_of_biases_that_cannot_be_summed_are_computed_whole(x):
    return tf.raw_ops.BiasAddGrad(out_backprop=tf.cast(10 * x, tf.int16))
