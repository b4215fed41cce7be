import numpy as np
import pytest
import tensorflow as tf
from partition.check import check

RANDOM = np.random.default_rng(1)
UNEVEN = RANDOM.normal(1, 2, [7, 4, 6]).astype(np.float32)
FEWER = UNEVEN[:2]  # than three replicas


def length(x):
    return tf.shape(x)[0]


def flat(x):
    """The batch merged with what follows it."""
    return tf.reshape(x, [-1, 6])


def behind(x):
    """The batch merged with what precedes it."""
    return tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 6])


RESHAPED = {
    "rows": (lambda x: tf.reshape(x, [-1, 24]), "axis 0"),
    "rows by their number": (lambda x: tf.reshape(x, [length(x), -1]), "axis 0"),
    "rows by all sizes": (lambda x: tf.reshape(x, [length(x), 3, 8]), "axis 0"),
    "more axes": (lambda x: tf.reshape(x, [-1, 2, 2, 6, 1]), "axis 0"),
    "an axis ahead": (lambda x: tf.reshape(x, [1, -1, 24]), "axis 1"),
    "merged with the next": (flat, "axis 0, inner 4"),
    "merged with a part of the next": (lambda x: tf.reshape(x, [-1, 2, 6]), "axis 0, inner 2"),
    "merged by its product": (lambda x: tf.reshape(x, [length(x) * 4, 6]), "axis 0, inner 4"),
    "merged with all": (lambda x: tf.reshape(x, [-1]), "axis 0, inner 24"),
    "merged and parted": (lambda x: tf.reshape(flat(x), [-1, 4, 6]), "axis 0"),
    "parted by its number": (lambda x: tf.reshape(flat(x), [length(x), 8, -1]), "axis 0"),
    "merged with the one before": (behind, "axis 0, outer 4"),
    "merged with both": (lambda x: tf.reshape(behind(x), [-1, 3]), "axis 0, inner 2, outer 4"),
    "parted to both sides": (
        lambda x: tf.reshape(tf.reshape(behind(x), [-1, 3]), [2, 2, -1, 2, 3]),
        "axis 2",
    ),
    "parted by its number to both sides": (
        lambda x: tf.reshape(tf.reshape(behind(x), [-1]), [4, length(x), -1]),
        "axis 1",
    ),
}


@pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])
@pytest.mark.parametrize("case", RESHAPED)
def test_a_reshape_carries_the_cut_along(case, batch, layouts):
    function, cut = RESHAPED[case]
    report = check(lambda x: function(x) * 2 + 1, batch)
    cut = cut.replace("axis", "sharded(axis", 1).replace(",", " by batch 0,", 1)
    assert f"{cut})" in {each.replace(" by batch 0)", ")") for each in layouts["Reshape"]}
    assert len(report.exchanged) <= ("outer" in cut)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.reshape(x, [4, -1]),
        lambda x: tf.reshape(x, [-1, length(x), 6]),
        lambda x: tf.reshape(flat(x), [4, length(x), 6]),
        lambda x: tf.reshape(x, [8, -1, 3]),
    ],
)
def test_a_reshape_that_tears_examples_apart_is_computed_whole(function):
    check(function, RANDOM.normal(size=[8, 4, 6]).astype(np.float32), whole=["Reshape"])


def test_a_size_that_depends_on_values_is_that_of_the_other_axes():
    def function(x, n):
        return tf.reshape(x, [length(x), n, -1]), tf.reshape(x, [-1, n])

    check(function, UNEVEN, np.int32(3), whole=["Reshape"], replicas=[2])


def test_unknown_sizes_are_carried_along():
    def function(x, other):
        steps = length(other)  # an axis that is no multiple of x's batch
        tiled = tf.tile(x[:, None], [1, steps, 1, 1])
        rows = tf.reshape(tiled, [-1, 4, 6])
        heads = tf.reshape(tf.nn.relu(rows), [length(x), steps, 2, 12])
        return tf.transpose(heads, [0, 2, 1, 3])

    check(function, UNEVEN, np.ones([3, 1], np.float32))


def test_summands_are_reshaped_before_they_are_summed(layouts):
    def function(x):
        total = tf.reduce_sum(x, 0)
        return tf.transpose(tf.reshape(total, [3, 8])), tf.squeeze(tf.expand_dims(total, 0), [0])

    report = check(function, UNEVEN)
    assert [each.kind for each in report.exchanged] == ["sum"]
    for type_ in ("Reshape", "Transpose", "ExpandDims", "Squeeze"):
        assert layouts[type_] == {"partial"}


def test_a_gradient_has_the_shape_of_what_was_broadcast():
    def function(x):
        scale = tf.reshape(tf.linspace(0.5, 2, 6), [6])
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            loss = tf.reduce_sum(tf.square(x * scale) + flat(x)[:, :1, None][0])
        return tape.gradient(loss, [x, scale])

    check(function, UNEVEN, whole=None)


@pytest.mark.parametrize("batch", [UNEVEN, FEWER, UNEVEN[:1]], ids=["uneven", "fewer", "one"])
def test_gradients_through_reshapes_are_those_of_one_device(batch):
    def function(x):
        weights = tf.reshape(tf.linspace(-1.0, 1, 12), [6, 2])
        bias = tf.constant([0.5, -2])
        with tf.GradientTape() as tape:
            tape.watch([x, weights, bias])
            rows = tf.reshape(x, [-1, 6]) @ weights + bias
            out = tf.reshape(rows, [tf.shape(x)[0], 4, 2]) * tf.reduce_mean(x, -1, keepdims=True)
            loss = tf.reduce_sum(tf.transpose(out, [1, 0, 2]) ** 3)
        return tape.gradient(loss, [x, weights, bias])

    check(function, batch)


MOVED = {
    "transpose": lambda x: tf.transpose(x, [2, 0, 1]),
    "transpose by negative axes": lambda x: tf.transpose(x, [-1, -2, 0]),
    "conjugate": lambda x: tf.transpose(tf.complex(x, 2 * x), [1, 0, 2], conjugate=True),
    "axis ahead": lambda x: x[None] if x is None else tf.expand_dims(x, 0),
    "axis behind": lambda x: tf.expand_dims(x, -1),
    "axis in front of the batch's": lambda x: tf.expand_dims(tf.transpose(x, [1, 0, 2]), -3),
    "squeezed": lambda x: tf.squeeze(x[:, None, :, None], [1, -2]),
    "squeezed ahead": lambda x: tf.squeeze(tf.expand_dims(x, 0), [0]),
}


@pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])
@pytest.mark.parametrize("case", MOVED)
def test_the_axes_of_a_batch_are_followed(case, batch):
    assert not check(MOVED[case], batch, exact=True).exchanged


def test_the_batchs_own_axis_is_squeezed_whole():
    check(lambda x: tf.squeeze(x, [0]), UNEVEN[:1], whole=["Squeeze"])


def test_all_axes_of_one_entry_are_squeezed_whole_where_the_batch_may_have_one():
    check(lambda x: tf.squeeze(x), UNEVEN[:, :1], whole=["Squeeze"])


@pytest.mark.parametrize(
    ("dtype", "shape", "whole"),
    [
        (tf.int32, [7, 3], []),
        (tf.uint8, [7, 3], []),
        (tf.int64, [7, 2], []),
        (tf.float16, [7, 3], []),
    ],
)
def test_bits_are_read_otherwise_in_place(dtype, shape, whole):
    batch = RANDOM.normal(size=shape).astype(np.float32)
    assert not check(lambda x: tf.bitcast(x, dtype), batch, exact=True, whole=whole).exchanged


def test_bits_of_a_batchs_entries_are_joined_whole():
    batch = np.arange(2, dtype=np.int32)
    check(lambda x: tf.bitcast(x, tf.int64), batch, exact=True, whole=["Bitcast"])
