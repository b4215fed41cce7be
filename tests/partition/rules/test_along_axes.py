import re

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import of_drawn_batches
from partition.examples import cuts, turned
from partition.samples import sample

RANDOM = np.random.default_rng(3)
UNEVEN = RANDOM.normal(1, 2, [7, 5, 4]).astype(np.float32)
FEWER = UNEVEN[:2]  # than three replicas
RAW = tf.raw_ops

in_shares = pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])


def lengths(x):
    """Lengths of sequences, one for each example."""
    return tf.argmax(x[:, :, 0], 1, tf.int32) % 5


def whole_numbers(x):
    """Whole numbers from 0 to 4 on every replica, one for each example."""
    return tf.cast(RAW.LinSpace(start=0.0, stop=4.0, num=tf.shape(x)[0]), tf.int32)


KEPT = {
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
    assert f"sharded({cut})" in cuts(layouts, re.match(r"\w+", case)[0])
    assert not report.exchanged


WHOLE = {
    "ReverseSequence": lambda x: tf.reverse_sequence(x, [2, 1, 3, 4, 7], 0, 1),
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


@sample(lambda length: UNEVEN[:length], sends=["sum"], layouts={"ReverseSequence": {"partial"}})
def test_what_is_linear_in_a_partial_is_one(x):
    total = tf.reduce_sum(x, 0)
    return tf.sin(tf.reverse_sequence(total, [1, 2, 3, 1, 0], 1, 0))


@of_drawn_batches
def test_any_operation_along_an_axis_is_that_of_one_device_wherever_the_batch_is(case):
    axis = case.choose([*case.others, case.axis])
    other = case.choose(range(case.rank))

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        found = []
        if axis != other:
            sizes = tf.cast(
                tf.reduce_max(t, [at for at in range(case.rank) if at != other]), "int32"
            )
            along = sizes % (case.shape[axis] + 1)
            found += [tf.reverse_sequence(each, along, axis, other) for each in (t, whole)]
        rows = tf.reshape(t, [-1, case.shape[-1]])
        all_rows = tf.reshape(whole, [-1, case.shape[-1]])
        for one, values in ((rows, all_rows), (all_rows, rows), (rows, rows)):
            found += [
                tf.searchsorted(tf.sort(one), values),
                tf.searchsorted([[2.0, 9.0, 30.0]], tf.reshape(values, [1, -1]), "right"),
            ]
        return found

    case.check(function, exact=True)
