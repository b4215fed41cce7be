import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import of_drawn_batches
from partition.examples import length
from partition.samples import sample

UNEVEN = np.arange(7 * 4, dtype=np.float32).reshape(7, 4) ** 2 - 20
FEWER = UNEVEN[:2]  # than three replicas
RAW = tf.raw_ops
BATCHES = pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])


def one(x):
    """A tensor without examples that is no constant."""
    return tf.sqrt(tf.cast(tf.rank(x), tf.float32)) * tf.constant([[1.5, -2, 7, 9]])


def column(x):
    """A whole tensor with one number for each example."""
    return tf.expand_dims(RAW.LinSpace(start=0.0, stop=5.0, num=length(x)), 1)


CUT = {
    "fill": (lambda x: x + tf.fill([length(x), 1], 2.5), "Fill", ""),
    "zeros": (lambda x: x - tf.zeros([length(x), 4]), "Fill", ""),
    "fill of another axis": (lambda x: tf.fill([3, length(x)], 2), "Fill", "axis 1"),
    "fill of a multiple": (lambda x: tf.ones([length(x) * 3, 2]), "Fill", "inner 3"),
    "fill in 64 bits": (lambda x: tf.ones(tf.shape(x, tf.int64)), "Fill", ""),
    "fill of an unknown size": (lambda x, n: tf.fill([n, length(x)], 3), "Fill", "axis 1"),
    "broadcast": (lambda x: x + tf.broadcast_to(one(x), tf.shape(x)), "BroadcastTo", ""),
    "broadcast of a vector": (
        lambda x: tf.broadcast_to(one(x)[0], [length(x), 3, 4]),
        "BroadcastTo",
        "",
    ),
    "broadcast of the batch": (
        lambda x: tf.broadcast_to(x[:, None], [2, length(x), 3, 4]),
        "BroadcastTo",
        "axis 1",
    ),
    "broadcast of a whole": (
        lambda x: tf.broadcast_to(column(x), [length(x), 3]),
        "BroadcastTo",
        "",
    ),
    "tiles": (lambda x: x * tf.tile(one(x), [length(x), 1]), "Tile", ""),
    "tiles of rows": (
        lambda x: tf.tile(tf.reshape(one(x), [2, 2]), [length(x), 3]),
        "Tile",
        "inner 2",
    ),
    "more tiles of rows": (
        lambda x: tf.tile(tf.reshape(one(x), [2, 2]), [1, length(x) * 3]),
        "Tile",
        "inner 6",
    ),
    "tiles of columns": (lambda x: tf.tile(one(x), [2, length(x)]), "Tile", "inner 4"),
    "tiles of tiles": (lambda x: tf.tile(tf.tile(x, [2, 1]), [3, 1]), "Tile", "outer 6"),
    "tiles of the batch": (lambda x: tf.tile(x, [3, 2]) * 2, "Tile", "outer 3"),
    "tiles of another axis": (lambda x: tf.tile(tf.transpose(x), [3, 2]), "Tile", "outer 2"),
    "tiles of each example": (lambda x: tf.tile(x, [1, 5]), "Tile", ""),
    "tiles of merged axes": (
        lambda x: tf.tile(tf.reshape(x, [-1, 2]), [2, 1]) + 1,
        "Tile",
        "inner 2, outer 2",
    ),
    "range": (lambda x: x * tf.cast(tf.range(length(x)), tf.float32)[:, None], "Range", ""),
    "range in 64 bits": (lambda x: tf.range(tf.shape(x, tf.int64)[0]), "Range", ""),
    "range from a number": (lambda x: tf.range(5, length(x) + 5), "Range", ""),
    "range from the batch's length": (
        lambda x: tf.range(length(x), 3 * length(x)),
        "Range",
        "inner 2",
    ),
    "range with steps": (lambda x: tf.range(1, 6 * length(x) + 1, 2), "Range", "inner 3"),
    "range backwards": (lambda x: tf.range(length(x) - 1, -1, -1), "Range", ""),
}


@BATCHES
@pytest.mark.parametrize("case", CUT)
def test_a_replica_makes_its_own_part(case, batch, layouts):
    function, type_, cut = CUT[case]
    given = [np.int32(5)] if "unknown" in case else []
    # What is returned may be the whole: its negative is made of the parts.
    report = check(lambda *args: -function(*args), batch, *given, replicas=[3])
    assert any("sharded" in each and cut in each for each in layouts[type_])
    assert len(report.exchanged) <= ("outer" in cut)  # blocks are joined in the end


WHOLE = {
    "a square": lambda x: tf.ones([length(x), length(x)]),
    "a size that is no multiple": lambda x: tf.ones([length(x) + 1, 2]),
    "a number of sizes": lambda x: tf.ones([tf.minimum(length(x), 3), 2]),
    "a part of a range": lambda x: tf.range(1, length(x)),
    "every other number": lambda x: tf.range(0, length(x), 2),
    "a range of numbers": lambda x: tf.range(tf.cast(length(x), tf.float32)),
    "a tiled square": lambda x: tf.tile(one(x)[:, :1], [length(x), length(x)]),
    "a broadcast square": lambda x: tf.broadcast_to(one(x)[0, 0], [length(x), length(x)]),
    "a line of numbers": lambda x: RAW.LinSpace(start=0.0, stop=1.0, num=length(x)),
    "tiles of nothing": lambda x: tf.tile(one(x)[:0], [length(x), 1]),
    "nothing of the batch": lambda x: tf.tile(tf.fill([2, 1], 3.0), [2, 2]) + x[0, 0] * 0,
}


@BATCHES
@pytest.mark.parametrize("case", WHOLE)
def test_what_is_no_part_for_each_example_is_made_whole_without_sending(case, batch):
    whole = None if case == "nothing of the batch" else ()
    check(WHOLE[case], batch, whole=whole, replicas=[3])


@BATCHES
def test_what_needs_the_whole_makes_it_without_sending(batch):
    def function(x):
        ones, numbers = tf.ones([length(x), 2]), tf.range(length(x))
        tiles = tf.tile(one(x), [length(x), 1])
        return tf.sort(numbers, direction="DESCENDING"), tf.transpose(ones) @ ones, tiles[-1]

    report = check(function, batch, whole=None, replicas=[3])
    assert not [each for each in report.exchanged if each.kind == "gather"]


def test_tiles_of_an_unknown_number_make_the_batch_whole():
    check(lambda x, n: tf.tile(x, [n, 1]), UNEVEN, np.int32(2), whole=["Tile"])
    check(lambda x, n: tf.tile(x, [1, n]), UNEVEN, np.int32(2))
    check(lambda x: tf.tile(x, [0, 1]), UNEVEN, whole=["Tile"])


def test_a_broadcast_to_an_unknown_number_makes_the_batch_whole():
    check(
        lambda x, n: tf.broadcast_to(x[:, None], [n, 2, 4]),
        UNEVEN,
        np.int32(7),
        whole=["BroadcastTo"],
    )


@sample(UNEVEN, UNEVEN[:3], layouts={"Fill": {"replicated"}})
def test_the_parts_of_two_batches_do_not_mix(x, y):
    return tf.ones([length(x), length(y)]), tf.zeros([length(x) * length(y)]), tf.ones_like(y)


@of_drawn_batches
def test_what_is_made_in_the_shape_of_a_batch_is_that_of_one_device(case):
    other = case.choose([3, 1, 2])
    times = [case.choose([2, 1, 3]) for _ in case.shape]

    def function(t):
        sizes = tf.shape(t)
        entries = sizes[case.axis]
        row = tf.reduce_min(t, case.axis, keepdims=True)
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        multiples = tf.stack(
            [entries if axis == case.axis else count for axis, count in enumerate(times)]
        )
        numbers = tf.range(entries * other + 2, 2, -1) - tf.range(0, other * entries)
        return (
            t - tf.fill(sizes, 2.5),
            tf.fill([other, entries * other], 3) + numbers,
            t * tf.broadcast_to(row, sizes),
            tf.broadcast_to(whole, tf.concat([[other], sizes], 0)) - t,
            tf.broadcast_to(t, tf.concat([[other, 1], sizes], 0)),
            tf.tile(t, times),
            -tf.tile(row, multiples),  # of the parts; what is returned may be the whole
            -tf.tile(tf.constant([[1.0, 2], [3, 4]]), [entries, other]),
            -tf.tile(tf.constant([[1.0, 2], [3, 4]]), [other, entries]),
            tf.range(5, 5 + entries) * tf.cast(tf.reduce_min(t, case.others), tf.int32),
            tf.range(entries, 3 * entries, 2),
        )

    case.check(function, exact=True, whole=["Cumsum", "Range"])
