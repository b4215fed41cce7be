import re

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import of_drawn_batches

RANDOM = np.random.default_rng(3)
UNEVEN = RANDOM.normal(1, 2, [7, 5, 4]).astype(np.float32)
FEWER = UNEVEN[:2]  # than three replicas
RAW = tf.raw_ops

in_shares = pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])


def turned(x):
    """The batch's axis in the middle."""
    return tf.transpose(x, [1, 0, 2])


def lengths(x):
    """Lengths of sequences, one for each example."""
    return tf.argmax(x[:, :, 0], 1, tf.int32) % 5


def whole_numbers(x):
    """Whole numbers from 0 to 4 on every replica, one for each example."""
    return tf.cast(RAW.LinSpace(start=0.0, stop=4.0, num=tf.shape(x)[0]), tf.int32)


KEPT = {
    "ReverseV2": (lambda x: tf.reverse(x, [1, -1]), "axis 0"),
    "ReverseV2, turned": (lambda x: tf.reverse(turned(x), [0]), "axis 1"),
    "Roll": (lambda x: tf.roll(x, [1, 2], [1, -1]), "axis 0"),
    "Roll by one": (lambda x: tf.roll(turned(x), 2, -1), "axis 1"),
    "Cumsum": (lambda x: tf.cumsum(x, -1), "axis 0"),
    "Cumsum, backward": (lambda x: tf.cumsum(turned(x), 0, exclusive=True, reverse=True), "axis 1"),
    "Cumprod": (lambda x: tf.math.cumprod(x, 1), "axis 0"),
    "CumulativeLogsumexp": (lambda x: tf.math.cumulative_logsumexp(x, -1), "axis 0"),
    "ReverseSequence": (lambda x: tf.reverse_sequence(x, lengths(x), 1, 0), "axis 0"),
    "ReverseSequence, turned": (
        lambda x: tf.reverse_sequence(turned(x), lengths(x), 0, 1),
        "axis 1",
    ),
    "ReverseSequence of columns": (
        lambda x: tf.reverse_sequence(x, [2, 1, 3, 4, 4], 2, 1),
        "axis 0",
    ),
    "ReverseSequence of a whole": (
        lambda x: tf.reverse_sequence(tf.ones_like(x[:, 0]), lengths(x) % 4, 1, 0),
        "axis 0",
    ),
    "ReverseSequence of what is whole": (
        lambda x: tf.reverse_sequence(
            tf.stack([whole_numbers(x) * each for each in range(1, 5)]), lengths(x), 0, 1
        ),
        "axis 1",
    ),
    "ReverseSequence by what is whole": (
        lambda x: tf.reverse_sequence(x, whole_numbers(x), 1, 0),
        "axis 0",
    ),
    "ArgMax": (lambda x: tf.argmax(x, 1), "axis 0"),
    "ArgMin, turned": (lambda x: tf.argmin(turned(x), 0, tf.int32), "axis 0"),
    "ArgMax of the last": (lambda x: tf.argmax(turned(x), -1), "axis 1"),
    "TopKV2": (lambda x: tf.math.top_k(x, 2), "axis 0"),
    "TopKV2, turned": (lambda x: tf.math.top_k(turned(x), tf.shape(x)[1] - 2), "axis 1"),
    "NthElement": (lambda x: RAW.NthElement(input=x, n=1), "axis 0"),
    "InTopKV2": (lambda x: tf.math.in_top_k(lengths(x), x[:, :, 1], 2), "axis 0"),
    "LowerBound": (lambda x: tf.searchsorted(tf.sort(x[:, 0]), x[:, 1]), "axis 0"),
    "UpperBound": (lambda x: tf.searchsorted(tf.sort(x), x[..., :2], "right"), "axis 0, inner 5"),
    "UpperBound of the batch": (
        lambda x: tf.searchsorted([0.0, 1.0, 3.0], x[:, 0, 1], "right"),
        "axis 1",
    ),
}


@in_shares
@pytest.mark.parametrize("case", KEPT)
def test_an_operation_along_another_axis_keeps_the_cut(case, batch, layouts):
    function, cut = KEPT[case]
    report = check(function, batch, replicas=[3], exact=True)
    found = layouts[re.match(r"\w+", case)[0]]
    assert f"sharded({cut})" in {re.sub(r" by [^,)]*", "", each) for each in found}
    assert not report.exchanged


WHOLE = {
    "ReverseV2": lambda x: tf.reverse(x, [1, 0]),
    "Roll": lambda x: tf.roll(x, [1, 2], [2, -3]),
    "Cumsum": lambda x: tf.cumsum(x, 0),
    "CumulativeLogsumexp": lambda x: tf.math.cumulative_logsumexp(turned(x), -2),
    "ReverseSequence": lambda x: tf.reverse_sequence(x, [2, 1, 3, 4, 7], 0, 1),
    "ArgMax": lambda x: tf.argmax(x),
    "TopKV2": lambda x: tf.math.top_k(tf.transpose(x), 2),
    "NthElement": lambda x: RAW.NthElement(input=tf.transpose(x), n=1),
    "LowerBound": lambda x: RAW.LowerBound(sorted_inputs=x[None, :, 0, 0], values=[[1.0, 2.0]]),
}


@pytest.mark.parametrize("type_", WHOLE)
def test_an_operation_along_the_batch_is_computed_whole(type_):
    check(WHOLE[type_], UNEVEN, whole=[type_])


def test_what_is_cut_and_needed_by_all_examples_is_gathered():
    def function(x):
        pairs = x[:, tf.newaxis, 0] + x[tf.newaxis, :, 1]
        rising = tf.exp(tf.cast(tf.range(tf.shape(x)[0]), tf.float32) / 3)
        return (
            tf.reverse_sequence(pairs, lengths(x), 2, 1),
            RAW.UpperBound(sorted_inputs=rising[None], values=x[None, :, 0, 0]),
        )

    report = check(function, UNEVEN, replicas=[3])
    assert {"ReverseSequence", "UpperBound"} <= {each.operation for each in report.exchanged}


SUMMANDS = {
    "ReverseV2": lambda s: tf.reverse(s, [0]),
    "Roll": lambda s: tf.roll(s, 1, 0),
    "Cumsum": lambda s: tf.cumsum(s, 1),
    "ReverseSequence": lambda s: tf.reverse_sequence(s, [1, 2, 3, 1, 0], 1, 0),
}


@in_shares
@pytest.mark.parametrize("type_", SUMMANDS)
def test_what_is_linear_in_a_summand_is_one(type_, batch, layouts):
    function = SUMMANDS[type_]
    report = check(lambda x: tf.sin(function(tf.reduce_sum(x, 0))), batch, replicas=[3])
    assert layouts[type_] == {"partial"}
    assert [each.kind for each in report.exchanged] == ["sum"]


def test_what_is_not_linear_in_a_summand_waits_for_the_sum(layouts):
    check(lambda x: tf.math.cumprod(tf.reduce_sum(x, 0) / 9, 1), UNEVEN, replicas=[3])
    assert layouts["Cumprod"] == {"replicated"}


@of_drawn_batches
def test_any_operation_along_an_axis_is_that_of_one_device_wherever_the_batch_is(case):
    axis = case.choose([*case.others, case.axis])
    other = case.choose(range(case.rank))
    count = case.choose([1, min(2, case.shape[-1])])

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        found = [
            tf.reverse(t, [axis]),
            tf.roll(t, 1, axis),
            tf.roll(t, [1, 2], [axis, other]),
            tf.cumsum(t, axis, exclusive=True),
            tf.cumsum(t, axis, reverse=True),
            tf.math.cumprod(t % 3 + 1, axis),
            tf.argmax(t % 5, axis),
            tf.argmin(t % 5, axis, tf.int32),
            tf.math.top_k(t, count),
        ]
        if axis != other:
            sizes = tf.cast(
                tf.reduce_max(t, [at for at in range(case.rank) if at != other]), "int32"
            )
            along = sizes % (case.shape[axis] + 1)
            found += [tf.reverse_sequence(each, along, axis, other) for each in (t, whole)]
        rows = tf.reshape(t, [-1, case.shape[-1]])
        all_rows = tf.reshape(whole, [-1, case.shape[-1]])
        found += [RAW.NthElement(input=rows, n=0)]
        for one, values in ((rows, all_rows), (all_rows, rows), (rows, rows)):
            found += [
                tf.searchsorted(tf.sort(one), values),
                tf.searchsorted([[2.0, 9.0, 30.0]], tf.reshape(values, [1, -1]), "right"),
            ]
            classes = tf.cast(tf.reduce_max(one, 1), tf.int32) % case.shape[-1]
            found += [tf.math.in_top_k(classes, values % 5, 1)]
        return found

    case.check(function, exact=True)
