import re

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import of_drawn_batches
from partition.examples import cuts, gradient, length, sent, turned
from partition.samples import sample

RANDOM = np.random.default_rng(4)
UNEVEN = RANDOM.normal(1, 2, [7, 5, 4]).astype(np.float32)
FEWER = UNEVEN[:2]  # than three replicas

in_shares = pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])


def blocks(x, count=3):
    """Blocks of all examples."""
    return tf.concat([x * (index + 1) for index in range(count)], 0)


JOINED = {
    "ConcatV2 of columns": (lambda x: tf.concat([x, x[:, :1], x * 3], 1), "axis 0"),
    "ConcatV2 of the last": (lambda x: tf.concat([x, x * 3], -1), "axis 0"),
    "ConcatV2 beside a whole": (
        lambda x: tf.concat([tf.ones([length(x), 2, 4]), x], 1),
        "axis 0",
    ),
    "ConcatV2 end to end": (lambda x: tf.concat([x, -x], 0), "axis 0, outer 2"),
    "ConcatV2 of blocks": (lambda x: tf.concat([blocks(x), -x], 0), "axis 0, outer 4"),
    "ConcatV2 end to end, turned": (
        lambda x: tf.concat([turned(x), turned(x) * 2], -2),
        "axis 1, outer 2",
    ),
    "ConcatV2 end to end, with zeros": (
        lambda x: tf.concat([x, tf.zeros([2 * length(x), 5, 4]), x], 0),
        "axis 0, outer 4",
    ),
    "ConcatV2 of pairs": (
        lambda x: tf.concat([tf.reshape(x, [-1, 4])] * 2, 0),
        "axis 0, inner 5, outer 2",
    ),
    "Pack": (lambda x: tf.stack([x, x * 2]), "axis 1"),
    "Pack behind": (lambda x: tf.stack([x, x * 2], 1), "axis 0"),
    "Pack between": (lambda x: tf.stack([turned(x), -turned(x)], 1), "axis 2"),
    "Pack behind, turned": (lambda x: tf.stack([turned(x), -turned(x)], 2), "axis 1"),
    "Pack at the end": (lambda x: tf.stack([x, x * 2], -1), "axis 0"),
    "Pack beside a whole": (lambda x: tf.stack([tf.ones([length(x), 4]), x[:, 0]], -3), "axis 1"),
    "Unpack": (lambda x: tf.unstack(x, axis=1), "axis 0"),
    "Unpack of the last": (lambda x: tf.unstack(turned(x), axis=-1), "axis 1"),
    "Unpack ahead": (lambda x: tf.unstack(turned(x)), "axis 0"),
    "Split": (lambda x: tf.split(x, 2, -1), "axis 0"),
    "Split of blocks": (lambda x: tf.split(blocks(x), 3), "axis 0"),
    "Split of blocks in two": (lambda x: tf.split(blocks(x, 4), 2), "axis 0, outer 2"),
    "SplitV": (lambda x: tf.split(x, [1, 4], 1), "axis 0"),
    "SplitV with a rest": (lambda x: tf.split(x, [1, -1], 1), "axis 0"),
    "SplitV of blocks": (
        lambda x: tf.split(blocks(x), [length(x), 2 * length(x)]),
        "axis 0, outer 2",
    ),
    "SplitV of blocks, turned": (
        lambda x: tf.split(tf.concat([turned(x)] * 3, 1), [length(x), 2 * length(x)], 1),
        "axis 1, outer 2",
    ),
    "SplitV of blocks with a rest": (
        lambda x: tf.split(blocks(x, 4), tf.stack([-1, length(x)]), num=2),
        "axis 0, outer 3",
    ),
}


@in_shares
@pytest.mark.parametrize("case", JOINED)
def test_what_is_joined_or_taken_apart_keeps_the_cut(case, batch, layouts):
    function, cut = JOINED[case]
    report = check(lambda x: (function(x), gradient(function, x)), batch, replicas=[3])
    assert f"sharded({cut})" in cuts(layouts, re.match(r"\w+", case)[0])
    assert not sent(report)


def test_operands_with_other_entries_of_each_example_are_joined_to_them(layouts):
    def function(x):
        one, five = x[:, 0], tf.reshape(x, [-1, 4])
        return tf.concat([one, five], 0), tf.concat([five, one], 0), tf.concat([one, one[:0]], 0)

    check(function, UNEVEN, replicas=[3], whole=None)
    assert "sharded(axis 0 by batch_0, outer 6)" in layouts["ConcatV2"]


@sample(RANDOM.normal(size=[8, 5, 4]).astype(np.float32), replicas=[3])
def test_sizes_of_parts_of_an_axis_of_any_length_are_those_of_one_device(x):
    pairs = x[:, tf.newaxis, 0] + x[tf.newaxis, :, 1]
    parts = [*tf.split(pairs, 2, 1), *tf.split(pairs, [1, 3, -1], 1)]
    return [tf.ones(tf.shape(each)[1:]) for each in parts]


WHOLE = {
    "ConcatV2": lambda x: tf.concat([x, tf.ones([1, 5, 4])], 0),
    "Split": lambda x: tf.split(blocks(x), 2),
    "SplitV": lambda x: tf.split(x, [1, -1]),
    "Unpack": lambda x: tf.unstack(tf.ensure_shape(x, [8, 5, 4])),
}


@pytest.mark.parametrize("type_", WHOLE)
def test_what_tears_examples_apart_is_computed_whole(type_):
    check(WHOLE[type_], RANDOM.normal(size=[8, 5, 4]).astype(np.float32), whole=[type_])


def test_an_operand_that_is_cut_otherwise_is_gathered(layouts):
    def function(x):
        pairs = x[:, tf.newaxis, 0] + x[tf.newaxis, :, 1]
        others = tf.transpose(pairs, [1, 0, 2])
        return tf.concat([pairs, others], 2), tf.stack([pairs, others], 1)

    report = check(function, UNEVEN, replicas=[3])
    assert layouts["ConcatV2"] | layouts["Pack"] == {"sharded(axis 0 by batch_0)"}
    assert [each.operation for each in report.exchanged] == ["AddV2", "ConcatV2"]


def test_two_batches_never_mix():
    other = UNEVEN[:3] * 2

    def function(x, y):
        return tf.concat([x, y], 0)

    check(function, UNEVEN, other, whole=["ConcatV2"])


SUMMANDS = {
    "ConcatV2": lambda s, t: tf.concat([s, tf.ones([1, 4]), t], 0),
    "Pack": lambda s, t: tf.stack([s, tf.ones([5, 4]), t], 1),
    "Unpack": lambda s, t: tf.concat(tf.unstack(tf.concat([s, t], 0), axis=1), 0),
    "Split": lambda s, t: tf.concat(tf.split(tf.concat([s, t], 0), 2, 1), 0),
    "SplitV": lambda s, t: tf.concat(tf.split(tf.concat([s, t], 0), [3, 7]), 0),
}


@in_shares
@pytest.mark.parametrize("type_", SUMMANDS)
def test_summands_are_joined_and_taken_apart_and_summed_once(type_, batch, layouts):
    def function(x):
        return tf.sin(SUMMANDS[type_](tf.reduce_sum(x, 0), tf.reduce_mean(x * x, 0)))

    report = check(function, batch, replicas=[3])
    assert layouts[type_] == {"partial"}
    assert [(each.kind, each.tensors) for each in report.exchanged] == [("sum", 1)]


@sample(UNEVEN, replicas=[3], sends=["sum"], layouts={"ConcatV2": {"replicated"}})
def test_summands_beside_much_that_is_whole_are_summed_before(x):
    return tf.concat([tf.reduce_sum(x, 0), tf.ones([1000, 4])], 0)


def test_a_summand_beside_a_batch_is_summed_before():
    check(
        lambda x: tf.concat([tf.reduce_sum(x, 0), x[:, 0]], 0),
        UNEVEN,
        replicas=[3],
        whole=["ConcatV2"],
    )


@sample(UNEVEN, np.array([0, 0, 0, 0, 0, 0, 1], np.int32), replicas=[3])
def test_an_axis_that_is_a_sum_over_the_batch_is_awaited(x, marks):
    axis = tf.reduce_sum(marks)  # 1, though it is 0 of most examples
    s = tf.reduce_sum(x, 0)
    both = tf.concat([s, s[:, :2], 2 * s[:, :2]], axis)
    return both, tf.split(both, 2, axis), tf.split(both, [3, 5], axis)


@of_drawn_batches
def test_what_is_joined_and_taken_apart_is_that_of_one_device_wherever_the_batch_is(case):
    axis = case.choose(range(case.rank))
    at = case.choose([0, case.rank, -1])
    size = case.shape[axis]
    sizes = [size - 1, 1] if size > 1 else [1]  # no part without entries

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        zeros = tf.zeros_like(t)
        whole_sizes = sizes
        if axis == case.axis:
            whole_sizes = [tf.shape(t)[axis] // case.blocks] * case.blocks
        return (
            tf.concat([t, zeros, -t], axis),
            tf.concat([whole, t], axis),
            tf.stack([t, whole, zeros], at),
            tf.split(tf.concat([t, whole, -t], case.axis), 3, case.axis),
            tf.split(t, size if axis != case.axis else case.blocks, axis),
            tf.split(t, whole_sizes, axis),
            tf.split(tf.concat([t, -t], case.axis), 2, case.axis),
            tf.unstack(tf.stack([t, whole], at), axis=at),
            [] if axis == case.axis else tf.unstack(t, axis=axis),
        )

    case.check(function, exact=True, whole=["Cumsum", "Split", "SplitV"])


@of_drawn_batches
def test_sums_of_any_batch_are_joined_and_taken_apart(case):
    at = case.choose(range(case.rank))

    def function(t):
        s, means = tf.reduce_sum(t, case.axis), tf.reduce_mean(t, case.axis)
        both = tf.stack([s, means, tf.ones_like(s)], at)
        return (
            both,
            tf.unstack(both, axis=at),
            tf.split(both, 3, at),
            tf.split(both, [1, -1], at),
            tf.concat([both, tf.ones_like(both) * 2], at),
        )

    case.check(function)
