import re

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check, compare, strategy
from partition.drawn import of_drawn_batches
from partition.examples import length, turned
from partition.samples import sample

RANDOM = np.random.default_rng(6)
TABLE = RANDOM.normal(1, 2, [6, 4]).astype(np.float32)
ROWS = [[1], [0], [1], [3], [3]]  # of five rows
SORTED = [0, 0, 1, 1, 3]


def batch(length):
    """Features, two indices of each example, and one."""
    return (
        RANDOM.normal(1, 2, [length, 5, 4]).astype(np.float32),
        RANDOM.integers(0, 6, [length, 2]).astype(np.int32),
        RANDOM.integers(0, 6, [length]).astype(np.int32),
    )


# Uneven shares, and fewer examples than three replicas.
in_shares = pytest.mark.parametrize("batches", [batch(7), batch(2)], ids=["uneven", "fewer"])


PAIRS = [[[1], [0]], [[3], [1]]]  # of five rows


def pairs(y):
    """Four of five rows, two by two."""
    return tf.stack([y[:2], y[3:]])


def type_of(case):
    return re.match(r"\w+", case)[0]


SUMMANDS = {
    "ScatterNd": lambda x, i, j: tf.scatter_nd(j[:, tf.newaxis], x, [6, 5, 4]),
    "ScatterNd of pairs": lambda x, i, j: tf.scatter_nd(i, x[:, 0], [6, 6, 4]),
    "ScatterNd of twos": lambda x, i, j: tf.scatter_nd(i[..., tf.newaxis], x[:, :2], [6, 4]),
    "ScatterNd of integers": lambda x, i, j: tf.scatter_nd(j[:, tf.newaxis], i, [6, 2]),
    "ScatterNd of ones": lambda x, i, j: tf.scatter_nd(
        j[:, tf.newaxis], tf.ones([length(j), 2]), [6, 2]
    ),
    "TensorScatterAdd": lambda x, i, j: tf.tensor_scatter_nd_add(TABLE, j[:, tf.newaxis], x[:, 0]),
    "TensorScatterSub": lambda x, i, j: tf.tensor_scatter_nd_sub(
        TABLE, i[..., tf.newaxis], x[:, :2]
    ),
    "UnsortedSegmentSum": lambda x, i, j: tf.math.unsorted_segment_sum(x, j, 6),
    "UnsortedSegmentSum of twos": lambda x, i, j: tf.math.unsorted_segment_sum(x[:, :2], i, 7),
    "UnsortedSegmentSum, some of none": lambda x, i, j: tf.math.unsorted_segment_sum(x, j - 2, 4),
    "UnsortedSegmentSum of ones": lambda x, i, j: tf.math.unsorted_segment_sum(
        tf.ones_like(j, tf.int64), j, 6
    ),
    "UnsortedSegmentSum of the batch behind": lambda x, i, j: tf.math.unsorted_segment_sum(
        turned(x), tf.tile(j[tf.newaxis], [5, 1]), 6
    ),
}


@in_shares
@pytest.mark.parametrize("case", SUMMANDS)
def test_what_examples_add_to_a_whole_is_a_summand(case, batches, layouts):
    report = check(SUMMANDS[case], *batches, replicas=[3])
    assert layouts[type_of(case)] == {"partial"}
    assert [each.kind for each in report.exchanged] == ["sum"]


@sample(*batch(7), layouts={"UnsortedSegmentSum": {"partial"}})
def test_sums_in_as_many_segments_as_there_are_are_summands(x, i, j):
    return tf.math.unsorted_segment_sum(x, j, tf.reduce_max(j) + 1)


@in_shares
@pytest.mark.parametrize("type_", ["max", "min", "prod", "mean", "sqrt_n"])
def test_what_replicas_have_of_segments_meets(type_, batches):
    def function(x, i, j):
        reduce = getattr(tf.math, f"unsorted_segment_{type_}")
        return reduce(x, j, 7), reduce(tf.cast(x, tf.float64), j - 2, 4)

    check(function, *batches, replicas=[3])


def test_the_largest_integers_of_segments_meet():
    check(lambda x, i, j: tf.math.unsorted_segment_max(i - 9, j, 7), *batch(7))


KEPT = {
    "ScatterNd": lambda y: tf.scatter_nd(ROWS, y, [6, tf.shape(y)[1], 4]),
    "TensorScatterAdd": lambda y: tf.tensor_scatter_nd_add(y, ROWS, y * 2),
    "TensorScatterSub": lambda y: tf.tensor_scatter_nd_sub(y, ROWS, y * y),
    "TensorScatterMax": lambda y: tf.tensor_scatter_nd_max(y, ROWS, y[::-1]),
    "TensorScatterMin": lambda y: tf.tensor_scatter_nd_min(y, ROWS, y[::-1]),
    "TensorScatterUpdate": lambda y: tf.tensor_scatter_nd_update(y, [[4], [0]], y[:2] * 2),
    "TensorScatterUpdate with a whole": lambda y: tf.tensor_scatter_nd_update(
        y, [[4], [0]], tf.ones([2, tf.shape(y)[1], 4])
    ),
    "TensorScatterAdd to a whole": lambda y: tf.tensor_scatter_nd_add(
        tf.ones([6, tf.shape(y)[1], 4]), ROWS, y
    ),
    "UnsortedSegmentSum": lambda y: tf.math.unsorted_segment_sum(y, SORTED, 5),
    "UnsortedSegmentMax": lambda y: tf.math.unsorted_segment_max(y, SORTED[::-1], 4),
    "UnsortedSegmentProd": lambda y: tf.math.unsorted_segment_prod(y, SORTED[::-1], 4),
    "ScatterNd of pairs": lambda y: tf.scatter_nd(PAIRS, pairs(y), [6, tf.shape(y)[1], 4]),
    "TensorScatterAdd of pairs": lambda y: tf.tensor_scatter_nd_add(y, PAIRS, pairs(y)),
    "TensorScatterAdd of pairs to a whole": lambda y: tf.tensor_scatter_nd_add(
        tf.ones([6, tf.shape(y)[1], 4]), PAIRS, pairs(y)
    ),
    "UnsortedSegmentSum of pairs": lambda y: tf.math.unsorted_segment_sum(
        pairs(y), [[0, 1], [1, 3]], 5
    ),
    "SegmentSumV2": lambda y: tf.math.segment_sum(y, SORTED),
    "SegmentMean": lambda y: tf.math.segment_mean(y, SORTED),
    "SegmentMaxV2": lambda y: tf.math.segment_max(y, SORTED),
    "SegmentProdV2": lambda y: tf.math.segment_prod(y, SORTED),
}


@in_shares
@pytest.mark.parametrize("case", KEPT)
def test_the_cut_beside_what_is_indexed_is_kept(case, batches, layouts):
    x, *_ = batches
    report = check(lambda x: KEPT[case](turned(x)), x, replicas=[3])
    type_ = type_of(case) if type_of(case) in layouts else type_of(case).removesuffix("V2")
    assert layouts[type_] == {"sharded(axis 1 by batch_0)"}
    assert not report.exchanged


WHOLE = {
    "ScatterNd": lambda x, i, j: tf.scatter_nd(j[:, tf.newaxis] % length(x), x, tf.shape(x)),
    "TensorScatterUpdate": lambda x, i, j: tf.tensor_scatter_nd_update(
        tf.concat([TABLE, TABLE], 0), (tf.range(length(j)) + 2)[:, tf.newaxis], x[:, 0]
    ),
    "TensorScatterMax": lambda x, i, j: tf.tensor_scatter_nd_max(TABLE, j[:, tf.newaxis], x[:, 0]),
    "TensorScatterAdd": lambda x, i, j: tf.tensor_scatter_nd_add(
        x, j[:, tf.newaxis] % length(x), x
    ),
    "UnsortedSegmentSum": lambda x, i, j: tf.math.unsorted_segment_sum(x, j, length(x)),
    "SegmentSum": lambda x, i, j: tf.raw_ops.SegmentSum(data=x, segment_ids=tf.sort(j)),
    "ScatterNd of what is not summed": lambda x, i, j: tf.scatter_nd(
        j[:, tf.newaxis], tf.cast(i, tf.int16), [6, 2]
    ),
    "UnsortedSegmentSum of what is not summed": lambda x, i, j: tf.math.unsorted_segment_sum(
        tf.cast(i, tf.int16), j, 6
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_indexes_examples_or_does_not_add_up_is_computed_whole(case):
    also = {"SegmentSum": ["TopKV2"]}
    check(WHOLE[case], *batch(7), whole=[type_of(case), *also.get(case, ())])


@in_shares
def test_what_is_whole_is_written_beside_what_is_cut(batches, layouts):
    def function(x, i, j):
        y = turned(x)
        whole, places = tf.cumsum(y, 1), tf.expand_dims(tf.cumsum(j) % 6, 1)
        total = tf.reduce_sum(x, 0)
        return (
            tf.tensor_scatter_nd_add(whole, ROWS, y),
            tf.tensor_scatter_nd_sub(whole, PAIRS, pairs(y)),
            tf.tensor_scatter_nd_max(y, ROWS, whole),
            tf.scatter_nd(places, x, [6, 5, 4]),
            tf.scatter_nd(j[:, tf.newaxis], tf.cumsum(x), [6, 5, 4]),
            tf.tensor_scatter_nd_add(TABLE, places, x[:, 0]),
            tf.tensor_scatter_nd_add(total, j[:, tf.newaxis] % 5, tf.cumsum(x[:, 0])),
            tf.tensor_scatter_nd_add(total, places % 5, x[:, 0]),
        )

    check(function, *batches, replicas=[3], whole=None)
    for type_ in ("TensorScatterSub", "TensorScatterMax"):
        assert layouts[type_] == {"sharded(axis 1 by batch_0)"}
    assert layouts["ScatterNd"] == {"partial"}


@sample(batch, whole=["Cumsum"], layouts={"ScatterNd": {"sharded(axis 1 by batch_0)"}})
def test_indices_of_examples_name_rows_that_are_cut_along_another_axis(x, i, j):
    one = x[:, 0, :1]
    each = tf.transpose(one * tf.transpose(tf.cumsum(one)))  # of all examples with one's own
    names, table = j[:, tf.newaxis], tf.zeros([6, length(x)])
    return (
        tf.scatter_nd(names, each, [6, length(x)]),
        tf.tensor_scatter_nd_add(table, names, each),
        tf.tensor_scatter_nd_min(table, names, each),
        tf.math.unsorted_segment_sum(each, j, 6),
        tf.math.unsorted_segment_max(each, j, 6),
    )


@sample(*batch(2), replicas=[3], whole=None)
def test_a_batch_as_long_as_an_index_is_not_taken_for_the_indexs_numbers(x, i, j):
    i, beside = tf.ensure_shape(i, [2, 2]), tf.transpose(tf.ensure_shape(x[:, 0], [2, 4]))
    table, corners = tf.ones([6, 6, 2]), [[0, 1], [1, 0], [1, 1], [5, 0]]
    ones = tf.constant([[1.0, 2], [3, 4]])
    return (
        tf.scatter_nd(tf.transpose(i), ones, [6, 6, 2]),
        tf.tensor_scatter_nd_add(table, tf.transpose(i), ones),
        tf.scatter_nd(corners, beside, [6, 6, 2]),
        tf.tensor_scatter_nd_add(table, corners, beside),
    )


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_examples_that_are_the_numbers_of_an_index_are_gathered(replicas):
    """Each of three examples has one number of all indices, and of what is written."""

    def function(i, x):
        places, written = tf.transpose(i), tf.reshape(tf.range(12.0), [4, 3])
        table = tf.ones([6, 6, 6, 3])
        return (
            tf.scatter_nd(places, written, [6, 6, 6, 3]),
            tf.tensor_scatter_nd_add(table, places, written),
            tf.tensor_scatter_nd_sub(table, places, tf.transpose(x)),
        )

    i = np.array([[0, 1, 1, 5], [3, 0, 0, 5], [2, 4, 4, 5]], np.int32)
    x = np.arange(12, dtype=np.float32).reshape(3, 4) ** 2
    signature = [tf.TensorSpec([3, 4], tf.int32), tf.TensorSpec([3, 4])]
    found = strategy(replicas).partitioned(function, input_signature=signature)(i, x)
    compare(function(tf.constant(i), tf.constant(x)), found, f"{replicas} replicas", exact=True)


@sample(
    *batch(7),
    replicas=[3],
    whole=["Cumsum", "TensorScatterAdd"],
    layouts={"TensorScatterAdd": {"replicated"}},
)
def test_updates_of_a_whole_that_is_as_long_as_the_batch_are_no_summands(x, i, j):
    return tf.tensor_scatter_nd_add(tf.cumsum(x), j[:, tf.newaxis] % length(x), x)


LINEAR = {
    "ScatterNd": lambda s: tf.scatter_nd(ROWS, s, [6, 4]),
    "TensorScatterAdd": lambda s: tf.tensor_scatter_nd_add(s, ROWS, s * 2),
    "TensorScatterSub": lambda s: tf.tensor_scatter_nd_sub(s, [[1], [1]], tf.ones([2, 4])),
    "UnsortedSegmentSum": lambda s: tf.math.unsorted_segment_sum(s, SORTED, 5),
    "SegmentSum": lambda s: tf.raw_ops.SegmentSum(data=s, segment_ids=SORTED),
    "SegmentMean": lambda s: tf.math.segment_mean(s, SORTED),
}


@in_shares
@pytest.mark.parametrize("type_", LINEAR)
def test_what_is_linear_in_a_summand_is_one(type_, batches, layouts):
    x, *_ = batches
    report = check(lambda x: tf.sin(LINEAR[type_](tf.reduce_sum(x, 0))), x, replicas=[3])
    assert layouts[type_] == {"partial"}
    assert [each.kind for each in report.exchanged] == ["sum"]


@sample(batch)
def test_gradients_of_sums_by_segment_are_those_of_one_device(x, i, j):
    with tf.GradientTape() as tape:
        tape.watch(x)
        results = [
            tf.scatter_nd(j[:, tf.newaxis], x, [6, 5, 4]),
            tf.math.unsorted_segment_sum(x, j, 6),
            tf.math.unsorted_segment_mean(x, j, 6),
            tf.tensor_scatter_nd_add(TABLE, j[:, tf.newaxis], x[:, 0]),
            tf.math.unsorted_segment_sum(turned(x), SORTED, 4),
        ]
        total = tf.add_n([tf.reduce_sum(tf.sin(each)) for each in results])
    return tape.gradient(total, x)


@of_drawn_batches
def test_anything_written_by_index_is_that_of_one_device_wherever_the_batch_is(case):
    number = case.choose([case.axis + 1, *range(1, case.rank + 1)])  # of axes that have an index
    size = case.choose([4, 2])
    behind = case.shape[number:]

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        axes = range(number, case.rank)
        places, all_places = (
            tf.cast(tf.reduce_max(each, axes), tf.int32) % size for each in (t, whole)
        )
        entries = tf.shape(t)[number:]
        found = []
        for one, values in ((places, t), (all_places, t), (places, whole)):
            table = tf.ones([size, *behind]) if case.axis < number else whole[:0]
            if case.axis >= number:
                table = tf.ones(tf.concat([[size], entries], 0)) + tf.reduce_max(
                    whole, range(number)
                )
            unique = tf.range(tf.minimum(size, tf.shape(t)[0]))[:, tf.newaxis]
            first = tf.reshape(values, tf.concat([[-1], entries], 0))[: tf.shape(unique)[0]]
            index = one[..., tf.newaxis]
            found += [
                tf.scatter_nd(index, values, tf.concat([[size], entries], 0)),
                tf.tensor_scatter_nd_add(table, index, values),
                tf.tensor_scatter_nd_sub(table, index, values),
                tf.tensor_scatter_nd_max(table, index, values),
                tf.tensor_scatter_nd_update(table, unique, first),
                tf.math.unsorted_segment_sum(values, one - 1, size),
                tf.math.unsorted_segment_max(-values, one, size),
                tf.math.unsorted_segment_prod(values % 3 + 1, one, size),
            ]
        order = tf.range(tf.shape(t)[0]) // 2
        return [*found, tf.math.segment_sum(t, order), tf.math.segment_max(-t, order)]

    case.check(function)
