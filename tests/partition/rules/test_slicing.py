import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from partition.check import check, compare, strategy
from partition.drawn import of_drawn_batches
from partition.examples import cuts, gradient, length, sent, turned
from partition.samples import sample

from tfdp.partition.layouts import Sharded
from tfdp.partition.rules.slicing import blocks_in
from tfdp.partition.shape_inference.known_slices import Taken, is_natural
from tfdp.partition.sizes import UNKNOWN, Batch, Size, Symbol

RANDOM = np.random.default_rng(1)
UNEVEN = RANDOM.normal(1, 2, [7, 5, 4]).astype(np.float32)
FEWER = UNEVEN[:2]  # than three replicas
RAW = tf.raw_ops

in_shares = pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])


def blocks(x):
    """Three blocks of all examples."""
    return tf.concat([x, x * 2, -x], 0)


def pairs(x):
    """Two rows for each example, one after the other."""
    return tf.reshape(x[:, :4], [-1, 2, 4])


SLICES = {
    "columns": (lambda x: x[:, 1:3], "axis 0"),
    "backward columns": (lambda x: x[:, 4:0:-2, ::-1], "axis 0"),
    "one column": (lambda x: x[:, 2], "axis 0"),
    "the last of the last": (lambda x: x[..., -1], "axis 0"),
    "an axis ahead": (lambda x: x[tf.newaxis], "axis 1"),
    "an axis ahead of columns": (lambda x: x[tf.newaxis, :, 1:], "axis 1"),
    "an axis in between": (lambda x: x[:, tf.newaxis, 1], "axis 0"),
    "an axis behind": (lambda x: x[..., tf.newaxis, 1:, tf.newaxis], "axis 0"),
    "by unknown numbers": (lambda x: x[:, tf.math.argmax(x[0, 0]) :], "axis 0"),
    "turned": (lambda x: turned(x)[1:3], "axis 1"),
    "turned, one": (lambda x: turned(x)[1, :, 2:], "axis 0"),
    "turned, all of the last": (lambda x: turned(x)[..., :, 1:], "axis 1"),
    "all": (lambda x: x[:], "axis 0"),
    "all by the length": (lambda x: x[: length(x)], "axis 0"),
    "all from the end": (lambda x: x[-length(x) :], "axis 0"),
    "all and more": (lambda x: x[: length(x) + 3], "axis 0"),
    "all by every name": (lambda x: x[0 : length(x) : 1, :, 1], "axis 0"),
    "the first block": (lambda x: blocks(x)[: length(x)], "axis 0"),
    "the second block": (lambda x: blocks(x)[length(x) : 2 * length(x), 1], "axis 0"),
    "the last block": (lambda x: blocks(x)[2 * length(x) :], "axis 0"),
    "the last block from the end": (lambda x: blocks(x)[-length(x) :, ..., :2], "axis 0"),
    "two blocks": (lambda x: blocks(x)[: -length(x)], "axis 0, outer 2"),
    "two blocks, turned": (lambda x: turned(blocks(x))[:, length(x) :], "axis 1, outer 2"),
    "one of each pair": (lambda x: pairs(x)[:, 1], "axis 0, inner 2"),
    "each second": (lambda x: pairs(x)[1::2], "axis 0"),
    "each second, from the first": (lambda x: pairs(x)[::2, 0, 1:], "axis 0"),
    "each second of blocks": (lambda x: pairs(blocks(x))[1::2], "axis 0, outer 3"),
    "each second of fours": (
        lambda x: tf.reshape(x[:, :4], [-1, 4])[1::2],
        "axis 0, inner 2",
    ),
    "each second, whatever the first is": (
        lambda x: tf.strided_slice(pairs(x), [5], [0], [2], begin_mask=1, end_mask=1),
        "axis 0",
    ),
    "all pairs": (lambda x: pairs(x)[: 2 * length(x)], "axis 0, inner 2"),
    "blocks of pairs": (
        lambda x: tf.concat([pairs(x), -pairs(x)], 0)[2 * length(x) :],
        "axis 0, inner 2",
    ),
}


@in_shares
@pytest.mark.parametrize("case", SLICES)
def test_a_slice_of_the_same_entries_of_every_example_stays_in_place(case, batch, layouts):
    function, cut = SLICES[case]
    unknown = "unknown" in case  # the numbers are those of the first example
    report = check(
        lambda x: (function(x), gradient(function, x)),
        batch,
        replicas=[3],
        whole=["StridedSlice"] if unknown else (),
    )
    assert f"sharded({cut})" in cuts(layouts, "StridedSlice")
    assert unknown or not sent(report)


SLICES_OF_SIZES = {
    "columns": (lambda x: tf.slice(x, [0, 1, 0], [-1, 2, -1]), "axis 0"),
    "columns by the length": (lambda x: tf.slice(x, [0, 1, 2], [length(x), -1, 1]), "axis 0"),
    "turned": (lambda x: tf.slice(turned(x), [1, 0, 2], [2, -1, 1]), "axis 1"),
    "the first block": (lambda x: tf.slice(blocks(x), [0, 1, 0], [length(x), 2, -1]), "axis 0"),
    "two blocks": (
        lambda x: tf.slice(blocks(x), [length(x), 0, 0], [2 * length(x), 5, 4]),
        "axis 0, outer 2",
    ),
    "the last block": (
        lambda x: tf.slice(blocks(x), [2 * length(x), 0, 1], [-1, -1, -1]),
        "axis 0",
    ),
}


@in_shares
@pytest.mark.parametrize("case", SLICES_OF_SIZES)
def test_a_slice_of_a_size_stays_in_place(case, batch, layouts):
    function, cut = SLICES_OF_SIZES[case]
    report = check(lambda x: (function(x), gradient(function, x)), batch, replicas=[3])
    assert f"sharded({cut})" in cuts(layouts, "Slice")
    assert not sent(report)


TORN = {
    "one example": lambda x: x[0],
    "the last": lambda x: x[-1],
    "some": lambda x: x[1:],
    "half": lambda x: x[: length(x) // 2],
    "backward": lambda x: x[::-1],
    "each second": lambda x: x[::2],
    "across blocks": lambda x: blocks(x)[1 : length(x) + 1],
    "across pairs": lambda x: pairs(x)[: length(x)],
    "each third of pairs": lambda x: pairs(x)[::3],
    "each second of pairs, not from the first": lambda x: pairs(x)[2::2],
    "each second of some pairs": lambda x: pairs(x)[: length(x) : 2],
    "none": lambda x: x[:0],
    "none behind all": lambda x: blocks(x)[3 * length(x) :],
    "none between blocks": lambda x: blocks(x)[2 * length(x) : length(x)],
}


@pytest.mark.parametrize("case", TORN)
def test_a_slice_that_tears_examples_apart_is_computed_whole(case):
    check(TORN[case], UNEVEN, whole=["StridedSlice"])
    # A slice as long as the batch is cut again: its gradient is one of two blocks, not of pairs.
    whole = ["StridedSlice", "Reshape"] if case == "across pairs" else ["StridedSlice"]
    check(lambda x: gradient(TORN[case], x), UNEVEN, whole=whole, replicas=[3])


def test_a_slice_of_some_examples_by_its_size_is_computed_whole():
    check(lambda x: tf.slice(x, [1, 0, 0], [-1, 5, 4]), UNEVEN, whole=["Slice"])
    check(lambda x: tf.slice(x, [0, 0, 0], [1, 5, 4]), UNEVEN, whole=["Slice"])
    check(lambda x: tf.slice(x, [0, 0, 0], [0, 5, 4]), UNEVEN, whole=["Slice"])


def test_the_only_example_is_taken_whole():
    def function(x):
        x = tf.ensure_shape(x, [1, 5, 4])
        return x[0], x[-1, 1:], gradient(lambda x: x[0], x)

    check(function, UNEVEN[:1], replicas=[3], whole=["StridedSlice"])
    signature = [tf.TensorSpec([1, 5, 4])]
    found = strategy(3).partitioned(function, input_signature=signature)(UNEVEN[:1])
    compare(function(tf.constant(UNEVEN[:1])), found, "a batch of one example", exact=True)


def test_a_slice_by_the_examples_of_a_batch_of_fixed_length_is_that_of_one_device():
    def function(x, begin):
        numbers = {"begin": begin, "end": begin + 2, "strides": begin * 0 + 1, "ellipsis_mask": 1}
        found = RAW.StridedSlice(input=x, **numbers)
        return found, RAW.StridedSliceGrad(shape=[length(x), 5, 4], **numbers, dy=found * found)

    begin = np.array([0, 1], np.int32)
    signature = [tf.TensorSpec([None, 5, 4]), tf.TensorSpec([2], tf.int32)]
    found = strategy(3).partitioned(function, input_signature=signature)(UNEVEN, begin)
    expected = function(tf.constant(UNEVEN), tf.constant(begin))
    compare(expected, found, "3 replicas", exact=True)


def test_a_batch_as_the_gradient_of_some_entries_is_made_whole():
    number = tf.Variable(1)  # which of two, is known only when the step runs

    def function(x):
        n = length(x)
        slices = [(2 * n + 5, 1, 2 * n), (2 * n - 1, 0, 2 * n - 1), (2 * n, number, 2 * n)]
        return [
            RAW.StridedSliceGrad(
                shape=[size, 5, 4], begin=[begin, 0, 0], end=[end, 5, 4], strides=[2, 1, 1], dy=x
            )
            for size, begin, end in slices
        ]

    check(function, UNEVEN, whole=["StridedSliceGrad"], replicas=[3])


@sample(UNEVEN, whole=None)
def test_a_fixed_batch_is_sliced_by_numbers(x):
    x = tf.ensure_shape(x, [7, 5, 4])
    return x[:7] * 2, x[0:100] * 2, tf.concat([x, -x], 0)[7:14] * 2, x[-9:] * 2


def test_as_many_columns_from_the_end_as_a_batch_has_examples_are_all_where_it_has_none():
    def function(x, y):
        n = length(y)
        columns = tf.concat([x, tf.zeros([length(x), n])], 1)
        slices = [
            columns[:, -n:],
            columns[:, :-n],
            columns[:, ::2],
            columns[:, 2:n],
            columns[:, 4:],
        ]
        return [
            (each, tf.reshape(each, [-1, tf.shape(each)[1]]), tf.reduce_mean(each))
            for each in slices
        ]

    for count in (0, 2):
        check(function, UNEVEN[:, 0], np.ones([count], np.float32), replicas=[3], whole=None)


SLICED_PARTIALS = {
    "StridedSlice": lambda s: s[1:3],
    "Slice": lambda s: tf.slice(s, [1, 1], [2, 3]),
    "StridedSliceGrad": lambda s: RAW.StridedSliceGrad(
        shape=[9, 4], begin=[2, 0], end=[7, 4], strides=[1, 1], dy=s
    ),
}


@in_shares
@pytest.mark.parametrize("type_", SLICED_PARTIALS)
def test_a_slice_of_a_summand_is_one(type_, batch, layouts):
    function = SLICED_PARTIALS[type_]
    report = check(lambda x: tf.sin(function(tf.reduce_sum(x, 0))), batch, replicas=[3])
    assert "partial" in layouts[type_]
    assert [each.kind for each in report.exchanged] == ["sum"]


@sample(UNEVEN, np.eye(2, dtype=np.int32), replicas=[3], whole=None)
def test_a_summand_is_sliced_by_numbers_that_are_summed(x, begin):
    return tf.slice(tf.reduce_sum(x, 0), tf.reduce_sum(begin, 0), [2, 2])


BATCH, TIMES = Batch("B"), Size.of(Symbol("T"))
B = BATCH.length


@pytest.mark.parametrize(
    ("begin", "end", "axis", "bounds"),
    [
        (0, None, 3 * B, (0, 3 * B)),
        (0, -B, 3 * B, (0, 2 * B)),
        (B, 2 * B, 3 * B, (B, 2 * B)),
        (-2 * B, 5 * B, 3 * B, (B, 3 * B)),
        (5, 7, B, (None, None)),
        (5, 7, B + 7, (5, 7)),
        (-B, 7, B + 7, (None, 7)),
        (-B - 1, None, B + 7, (6, B + 7)),
        (-B * TIMES, -B, B * TIMES + B, (None, B * TIMES)),
        (0, -1, B, (0, None)),
        (-1, None, B, (None, B)),
        (B - 1, None, B, (None, B)),
        (TIMES, B, B, (None, B)),
        (UNKNOWN, UNKNOWN, B, (None, None)),
        (-9, 99, 7, (0, 7)),
        (-2, -1, 7, (5, 6)),
        (9, None, 7, (7, 7)),
    ],
)
def test_bounds_are_those_that_are_certain(begin, end, axis, bounds):
    assert Taken(0, begin, end, 1, False).bounds(axis) == bounds


def test_blocks_are_counted_where_their_number_is_certain():
    layout = Sharded(0, BATCH, 2, 3)
    assert blocks_in(4 * B, layout) == 2
    assert blocks_in(0, layout) == 0
    assert blocks_in(2 * B * TIMES, layout) == TIMES
    assert blocks_in(B, layout) is None
    assert blocks_in(-2 * B, layout) is None
    assert blocks_in(UNKNOWN, layout) is None


def test_a_size_that_may_be_negative_is_no_natural_number():
    assert is_natural(0) and is_natural(B) and is_natural(B * 2 + 1)
    assert not is_natural(-1) and not is_natural(B - 1) and not is_natural(UNKNOWN)


@of_drawn_batches(blocks=(3, 1, 2))
def test_any_slice_is_that_of_one_device_wherever_the_batch_is(case):
    def taken(axis):
        """Some entries of an axis, or one."""
        end = case.shape[axis]
        if case.choose([False, False, True]):
            return case.choose([-1, 0])
        begin, stride = case.choose([0, 1, -1, None]), case.choose([1, 2, -1, None])
        return slice(begin, None if stride == -1 else case.choose([end, -1, None]), stride)

    spec = [taken(axis) for axis in case.others]
    first = case.choose(range(case.blocks))
    last = case.choose(range(first, case.blocks)) + 1
    every = case.choose([2, 3, 1])
    start = case.choose(range(every))
    new = case.choose(range(case.rank + 1))
    one = case.choose(range(case.shape[case.axis]))
    some = [case.draw(st.integers(0, size - 1)) for size in case.shape]

    def function(t):
        width = tf.shape(t)[case.axis] // case.blocks

        def along(own):
            specs = [*spec[: case.axis], own, *spec[case.axis :]]
            specs.insert(new, tf.newaxis)
            return t[tuple(specs)]

        begin = [0 if at == case.axis else each for at, each in enumerate(some)]
        of_blocks = list(begin)
        of_blocks[case.axis] = first * width
        size = [-1] * case.rank
        size[case.axis] = (last - first) * width
        return (
            along(slice(None)),
            along(slice(first * width, last * width)),
            along(slice(-width, None)),
            along(slice(start, None, every)),
            along(slice(one, None)),
            along(one),
            tf.slice(t, of_blocks, size),
            tf.slice(t, begin, [-1] * case.rank),
            tf.slice(t, some, [-1] * case.rank),
        )

    def both(t):
        with tf.GradientTape() as tape:
            tape.watch(t)
            results = function(t)
            total = tf.add_n([tf.reduce_sum(each * each) for each in results])
        return results, tape.gradient(total, t)

    case.check(both if case.choose([True, False]) else function, exact=True)


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


PADDED_PARTIALS = {
    "Pad": lambda s: tf.pad(s, [[1, 1], [0, 2]]),
    "PadV2": lambda s: tf.pad(s, [[1, 1], [0, 2]], constant_values=7.5),
    "MirrorPad": lambda s: tf.pad(s, [[1, 1], [0, 2]], "REFLECT"),
    "MirrorPadGrad": lambda s: tf.raw_ops.MirrorPadGrad(
        input=s, paddings=[[1, 1], [0, 1]], mode="REFLECT"
    ),
}


@in_shares
@pytest.mark.parametrize("type_", PADDED_PARTIALS)
def test_a_padded_summand_is_one_and_is_filled_once(type_, batch, layouts):
    function = PADDED_PARTIALS[type_]
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
