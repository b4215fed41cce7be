import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import of_drawn_batches
from partition.examples import cuts, gradient, length
from partition.samples import sample

RANDOM = np.random.default_rng(2)
UNEVEN = RANDOM.normal(1, 2, [7, 5, 4]).astype(np.float32)
FEWER = UNEVEN[:2]  # than three replicas

in_shares = pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])

COLUMNS = [[0, 0], [1, 2], [0, 3]]


PADDED = {
    "zeros": (lambda x: tf.pad(x, COLUMNS), "Pad", "axis 0"),
    "a number": (lambda x: tf.pad(x, COLUMNS, constant_values=3.5), "PadV2", "axis 0"),
    "a computed number": (
        lambda x: tf.pad(x, COLUMNS, constant_values=tf.reduce_max(x)),
        "PadV2",
        "axis 0",
    ),
    "reflected": (lambda x: tf.pad(x, COLUMNS, "REFLECT"), "MirrorPad", "axis 0"),
    "symmetric": (lambda x: tf.pad(x, COLUMNS, "SYMMETRIC"), "MirrorPad", "axis 0"),
    "turned": (
        lambda x: tf.pad(tf.transpose(x, [1, 0, 2]), [[2, 1], [0, 0], [0, 1]], "REFLECT"),
        "MirrorPad",
        "axis 1",
    ),
    "turned, zeros": (
        lambda x: tf.pad(tf.transpose(x, [1, 0, 2]), [[2, 1], [0, 0], [0, 1]]),
        "Pad",
        "axis 1",
    ),
    "a summed number": (
        lambda x: tf.pad(x, COLUMNS, constant_values=tf.reduce_sum(x)),
        "PadV2",
        "axis 0",
    ),
    "a block and columns": (
        lambda x: tf.pad(x, [[0, length(x)], [1, length(x)], [0, 3]]),
        "Pad",
        "axis 0, outer 2",
    ),
    "a block behind": (
        lambda x: tf.pad(x, [[0, length(x)], [1, 2], [0, 3]]),
        "Pad",
        "axis 0, outer 2",
    ),
    "blocks on both sides": (
        lambda x: tf.pad(x, [[2 * length(x), length(x)], [1, 2], [0, 3]], constant_values=2),
        "PadV2",
        "axis 0, outer 4",
    ),
    "blocks around pairs": (
        lambda x: tf.pad(
            tf.reshape(x, [-1, 4, 1]), [[5 * length(x), 5 * length(x)], [0, 1], [0, 0]]
        ),
        "Pad",
        "axis 0, inner 5, outer 3",
    ),
}


@in_shares
@pytest.mark.parametrize("case", PADDED)
def test_padding_beside_the_examples_stays_in_place(case, batch, layouts):
    function, type_, cut = PADDED[case]
    report = check(lambda x: (function(x), gradient(function, x)), batch, replicas=[3])
    assert f"sharded({cut})" in cuts(layouts, type_)
    sent = {each.operation for each in report.exchanged if each.why != "it is returned"}
    assert sent <= {"Max", "Pad", "PadV2", "Fill"}  # what is filled in, and its gradient


@pytest.mark.parametrize(
    ("paddings", "mode", "type_"),
    [([1, 0], "CONSTANT", "Pad"), ([0, 3], "REFLECT", "MirrorPad")],
)
def test_padding_of_the_batch_with_single_rows_is_computed_whole(paddings, mode, type_):
    check(lambda x: tf.pad(x, [paddings, [0, 0], [0, 0]], mode), UNEVEN, whole=[type_])

    def turned(x):
        return tf.pad(tf.transpose(x, [1, 0, 2]), [[0, 0], paddings, [0, 0]], mode)

    check(turned, UNEVEN, whole=[type_])


SUMMANDS = {
    "Pad": lambda s: tf.pad(s, [[1, 1], [0, 2]]),
    "PadV2": lambda s: tf.pad(s, [[1, 1], [0, 2]], constant_values=7.5),
    "MirrorPad": lambda s: tf.pad(s, [[1, 1], [0, 2]], "REFLECT"),
    "MirrorPadGrad": lambda s: tf.raw_ops.MirrorPadGrad(
        input=s, paddings=[[1, 1], [0, 1]], mode="REFLECT"
    ),
}


@in_shares
@pytest.mark.parametrize("type_", SUMMANDS)
def test_a_padded_summand_is_one_and_is_filled_once(type_, batch, layouts):
    function = SUMMANDS[type_]
    report = check(lambda x: tf.sin(function(tf.reduce_sum(x, 0))), batch, replicas=[3])
    assert layouts[type_] == {"partial"}
    assert [each.kind for each in report.exchanged] == ["sum"]


@sample(lambda length: UNEVEN[:length])
def test_a_summand_that_a_summand_fills_is_summed_first(x):
    total = tf.reduce_sum(x, 0)
    return tf.pad(total, [[1, 1], [0, 2]], constant_values=tf.reduce_sum(x))


@of_drawn_batches
def test_any_padding_is_that_of_one_device_wherever_the_batch_is(case):
    beside = [[case.choose([1, 0, 2]), case.choose([2, 1, 0])] for _ in case.shape]
    beside[case.axis] = [0, 0]
    before, after = case.choose([1, 0, 2]), case.choose([0, 1])
    rows = [*beside[: case.axis], [case.choose([1, 0]), 1], *beside[case.axis + 1 :]]
    mode = case.choose(["SYMMETRIC", "REFLECT"])
    mirrored = [
        [min(each, size - (mode == "REFLECT")) for each in pair]
        for pair, size in zip(beside, case.shape, strict=True)
    ]

    def function(t):
        width = tf.shape(t)[case.axis] // case.blocks
        blocks = [*beside]
        blocks[case.axis] = [before * width, after * width]
        with tf.GradientTape() as tape:
            tape.watch(t)
            found = (
                tf.pad(t, beside, constant_values=tf.reduce_max(t)),
                tf.pad(t, tf.stack(blocks)),
                tf.pad(t, tf.stack(blocks), constant_values=-1),
                tf.pad(t, rows),
                tf.pad(t, mirrored, mode),
            )
            total = tf.add_n([tf.reduce_sum(each * each) for each in found])
        s = tf.reduce_sum(t, case.axis, keepdims=True)
        return found, tape.gradient(total, t), tf.pad(s, rows, constant_values=3)

    case.check(function, exact=True, whole=["Pad", "PadV2", "Slice"])


def test_an_axis_as_long_as_another_batch_has_another_length_after_padding():
    def function(x, y):
        n = tf.shape(y)[0]
        columns = tf.ones([tf.shape(x)[0], n]) * x[:, :1]
        padded = [tf.pad(columns, [[0, 0], [1, 2]]), tf.pad(columns, [[0, 0], [3, 0]])]
        padded.append(gradient(lambda each: tf.pad(each, [[0, 0], [1, 2]], "SYMMETRIC"), columns))
        return [
            (tf.shape(each), tf.reshape(each, [tf.shape(each)[1], -1]), tf.reduce_mean(each, 0))
            for each in padded
        ]

    x, y = np.ones([7, 2], np.float32), np.ones([4], np.float32)
    check(function, x, y, replicas=[3], whole=None)
