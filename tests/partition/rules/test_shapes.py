import math
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from partition.check import check
from partition.drawn import of_drawn_batches
from partition.examples import length, of_any_axes
from partition.samples import sample

from tfdp.partition.layouts import Sharded
from tfdp.partition.rules.shapes import reshaped_layout
from tfdp.partition.sizes import Batch, Size, Symbol, product
from tfdp.partition.tensors import Tensor

UNEVEN = np.arange(7 * 4 * 3, dtype=np.float32).reshape(7, 4, 3)
FEWER = UNEVEN[:2]  # than three replicas
RAW = tf.raw_ops


def merged(x):
    return tf.reshape(tf.transpose(x, [1, 0, 2]), [-1])


SIZES = {
    "shape": tf.shape,
    "shape in 64 bits": lambda x: tf.shape(x, tf.int64),
    "shape of merged axes": lambda x: tf.shape(merged(x)),
    "shapes": lambda x: RAW.ShapeN(input=[x, x[:, 0, :2]]),
    "size": tf.size,
    "size in 64 bits": lambda x: tf.size(x, tf.int64),
    "rank": lambda x: RAW.Rank(input=x),
    "shape of a summand": lambda x: tf.shape(tf.reduce_sum(x, 0)),
    "shape of what a shape made": lambda x: tf.shape(tf.zeros([2, tf.shape(x)[0] * 3, 1])),
    "arithmetic": lambda x: (tf.shape(x)[0] * 2 + 1) // 3 - tf.size(x) % 5,
    "number of examples": lambda x: tf.cast(tf.shape(x)[0], tf.float32) / 7,
}


@pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])
@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_those_of_the_whole_tensor(case, batch):
    assert not check(SIZES[case], batch, replicas=[3]).exchanged


def test_the_size_of_an_unknown_axis_is_carried_along():
    def function(x, other):
        joined = tf.tile(x[:, :1], [1, tf.shape(other)[0], 1])
        return tf.shape(joined), tf.size(tf.nn.relu(joined)), tf.shape(other)

    assert not check(function, UNEVEN, np.ones([5, 2], np.float32)).exchanged


def test_the_shape_of_values_of_unknown_number_is_that_of_whole_ones():
    check(lambda x: tf.shape(tf.boolean_mask(x, x[:, 0, 0] > 20)), UNEVEN, whole=None)


@pytest.mark.parametrize("batch", [UNEVEN, FEWER, UNEVEN[:1]], ids=["uneven", "fewer", "one"])
def test_axes_of_gradients_do_not_depend_on_the_number_of_examples(batch):
    def function(x):
        row, column = tf.constant([[1.0, -2, 3]]), tf.reshape(tf.range(4.0), [4, 1])
        with tf.GradientTape() as tape:
            tape.watch([x, row, column])
            loss = tf.reduce_sum((x * row + column) * tf.reduce_mean(x, 1, keepdims=True))
        return tape.gradient(loss, [x, row, column])

    check(function, batch, replicas=[3])


@of_drawn_batches
def test_sizes_are_those_of_one_device_wherever_the_batch_is(case):
    def function(t):
        return tf.shape(t), tf.size(t), tf.rank(t), RAW.ShapeN(input=[t, tf.reduce_sum(t, 0)])

    case.check(function, whole=[])


RANDOM = np.random.default_rng(1)
ROWS = RANDOM.normal(1, 2, [7, 4, 6]).astype(np.float32)
FEWER_ROWS = ROWS[:2]  # than three replicas


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


@pytest.mark.parametrize("batch", [ROWS, FEWER_ROWS], ids=["uneven", "fewer"])
@pytest.mark.parametrize("case", RESHAPED)
def test_a_reshape_carries_the_cut_along(case, batch, layouts):
    function, cut = RESHAPED[case]
    report = check(lambda x: function(x) * 2 + 1, batch, replicas=[3])
    found = {re.sub(r" by batch.\d", "", each) for each in layouts["Reshape"]}
    assert f"sharded({cut})" in found
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


@sample(ROWS, np.int32(3), whole=["Reshape"], replicas=[2])
def test_a_size_that_depends_on_values_is_that_of_the_other_axes(x, n):
    return tf.reshape(x, [length(x), n, -1]), tf.reshape(x, [-1, n])


@sample(ROWS, np.ones([3, 1], np.float32))
def test_unknown_sizes_are_carried_along(x, other):
    steps = length(other)  # an axis that is no multiple of x's batch
    tiled = tf.tile(x[:, None], [1, steps, 1, 1])
    rows = tf.reshape(tiled, [-1, 4, 6])
    heads = tf.reshape(tf.nn.relu(rows), [length(x), steps, 2, 12])
    return tf.transpose(heads, [0, 2, 1, 3])


def test_summands_are_reshaped_before_they_are_summed(layouts):
    def function(x):
        total = tf.reduce_sum(x, 0)
        return tf.transpose(tf.reshape(total, [3, 8])), tf.squeeze(tf.expand_dims(total, 0), [0])

    report = check(function, ROWS)
    assert [each.kind for each in report.exchanged] == ["sum"]
    for type_ in ("Reshape", "Transpose", "ExpandDims", "Squeeze"):
        assert layouts[type_] == {"partial"}


@pytest.mark.parametrize("batch", [ROWS, FEWER_ROWS, ROWS[:1]], ids=["uneven", "fewer", "one"])
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

    check(function, batch, replicas=[3])


MOVED = {
    "transpose": lambda x: tf.transpose(x, [2, 0, 1]),
    "conjugate": lambda x: tf.transpose(tf.complex(x, 2 * x), [1, 0, 2], conjugate=True),
    "axis ahead": lambda x: tf.expand_dims(x, 0),
    "axis behind": lambda x: tf.expand_dims(x, -1),
    "axis in front of the batch's": lambda x: tf.expand_dims(tf.transpose(x, [1, 0, 2]), -3),
    "squeezed": lambda x: tf.squeeze(x[:, None, :, None], [1, -2]),
    "squeezed ahead": lambda x: tf.squeeze(tf.expand_dims(x, 0), [0]),
}
if tf.version.VERSION >= "2.20":  # before, it ends the process on one device, too
    MOVED["transpose by negative axes"] = lambda x: tf.transpose(x, [-1, -2, 0])


@pytest.mark.parametrize("batch", [ROWS, FEWER_ROWS], ids=["uneven", "fewer"])
@pytest.mark.parametrize("case", MOVED)
def test_the_axes_of_a_batch_are_followed(case, batch):
    assert not check(MOVED[case], batch, exact=True, replicas=[3]).exchanged


def test_the_batchs_own_axis_is_squeezed_whole():
    check(lambda x: tf.squeeze(x, [0]), ROWS[:1], whole=["Squeeze"])


def test_all_axes_of_one_entry_are_squeezed_whole_where_the_batch_may_have_one():
    check(lambda x: tf.squeeze(x), ROWS[:, :1], whole=["Squeeze"])


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


def sizes_of(x):
    """The sizes as Python's numbers: the function is traced for this length alone."""
    return [int(size) for size in x.shape]


FIXED = {
    "rows": lambda x: tf.reshape(x, [sizes_of(x)[0], 24]),
    "rows of the other axes": lambda x: tf.reshape(x, [sizes_of(x)[0], 3, -1]),
    "merged": lambda x: tf.reshape(tf.reshape(x, [sizes_of(x)[0] * 4, 6]), sizes_of(x)),
    "moved": lambda x: tf.reshape(tf.transpose(x, [1, 0, 2]), [2, 2, sizes_of(x)[0], 6]),
    "squeezed": lambda x: tf.squeeze(tf.reshape(x, [1, *sizes_of(x), 1])),
    "squeezed of nothing": lambda x: tf.squeeze(tf.reshape(x, sizes_of(x))),
    "zeros": lambda x: x + tf.zeros([*sizes_of(x)[:1], 1, 1]),
    "range": lambda x: tf.cast(tf.range(sizes_of(x)[0]), tf.float32)[:, None, None] * x,
}


@pytest.mark.parametrize(
    "batch", [ROWS, RANDOM.normal(size=[4, 4, 6]), FEWER_ROWS], ids=["uneven", "square", "fewer"]
)
@pytest.mark.parametrize("case", FIXED)
def test_a_batch_of_a_fixed_length_is_followed(case, batch):
    assert not check(FIXED[case], batch.astype(np.float32), replicas=[3]).exchanged


def grouped(draw, factors):
    """Joins factors that follow each other to the sizes of axes."""
    ends = draw(st.sets(st.integers(1, len(factors) - 1))) | {len(factors)}
    begin, groups = 0, []
    for end in sorted(ends):
        groups.append(factors[begin:end])
        begin = end
    return groups


def part(array, layout, numbers, start, rows):
    """Returns a replica's entries of a whole array, cut as a layout says."""
    outer, inner = numbers(layout.outer), numbers(layout.inner)
    shape, axis, length = array.shape, layout.axis, numbers(layout.batch.length)
    assert shape[axis] == outer * length * inner
    blocks = array.reshape(*shape[:axis], outer, length, inner, *shape[axis + 1 :])
    own = np.moveaxis(np.moveaxis(blocks, axis + 1, 0)[start : start + rows], 0, axis + 1)
    return own.reshape(*shape[:axis], outer * rows * inner, *shape[axis + 1 :])


def is_carried(tensor, layout, sizes, unknown, inferred, numbers):
    """Compares each cut that is found with the part of the whole that a replica then holds."""
    found = False
    for axis in range(len(sizes)):
        known = [None if at in unknown else size for at, size in enumerate(sizes)]
        cut = reshaped_layout(tensor, layout, known, axis, inferred == axis)
        if cut is None:
            continue
        found = True
        whole = np.arange(math.prod(map(numbers, tensor.shape)))
        whole = whole.reshape([numbers(size) for size in tensor.shape])
        target = [numbers(size) for size in sizes]
        own = list(target)
        own[axis] = numbers(cut.outer) * 2 * numbers(cut.inner)
        local = part(whole, layout, numbers, 1, 2).reshape(own)
        np.testing.assert_array_equal(local, part(whole.reshape(target), cut, numbers, 1, 2))
    return found


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_cut_of_a_reshaped_tensor_is_the_replicas_part(data):
    batch, time = Batch("B"), Symbol("T")
    values = {batch: 5, time: data.draw(st.integers(0, 3))}

    def numbers(size):
        if isinstance(size, int):
            return size
        return sum(n * math.prod(values[s] for s in term) for term, n in size.terms.items())

    factors = data.draw(st.lists(st.sampled_from([1, 2, 3, Size.of(time)]), max_size=5))
    at = data.draw(st.integers(0, len(factors)))
    factors.insert(at, batch.length)
    factors += [1]
    old = grouped(data.draw, factors)
    axis, seen = 0, 0
    while seen + len(old[axis]) <= at:
        seen += len(old[axis])
        axis += 1
    outer, inner = product(old[axis][: at - seen]), product(old[axis][at - seen + 1 :])
    tensor = Tensor(None, Sharded(axis, batch, inner, outer), [product(group) for group in old])
    sizes = [product(group) for group in grouped(data.draw, factors)]
    unknown = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    inferred = data.draw(st.sampled_from(sorted(unknown))) if len(unknown) == 1 else None
    if not product(map(numbers, sizes)):
        inferred = None  # TensorFlow infers no size of a tensor without elements from sizes of 0
        for each in unknown:
            sizes[each] = data.draw(st.integers(0, 9))
        if product(map(numbers, sizes)):
            return
    found = is_carried(tensor, tensor.layout, sizes, unknown, inferred, numbers)
    assert found or unknown


@settings(max_examples=200, deadline=None)
@given(
    old=st.lists(st.sampled_from([2, 3, 4, 8]), min_size=1, max_size=3),
    new=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4),
    inner=st.sampled_from([1, 2]),
    outer=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_a_batch_of_a_fixed_length_is_not_taken_for_another_axis(old, new, inner, outer, data):
    axis = data.draw(st.integers(0, len(old)))
    batch = Batch("fixed", 4)
    old.insert(axis, 4 * inner * outer)
    rest, left = divmod(math.prod(old), math.prod(new))
    new.insert(data.draw(st.integers(0, len(new))), rest)
    if not left:
        tensor = Tensor(None, Sharded(axis, batch, inner, outer), old)
        unknown = data.draw(st.sets(st.integers(0, len(new) - 1)))
        inferred = data.draw(st.sampled_from(sorted(unknown))) if len(unknown) == 1 else None
        is_carried(tensor, tensor.layout, new, unknown, inferred, int)


@of_drawn_batches
def test_axes_are_moved_added_and_taken_away_wherever_the_batch_is(case):
    order = case.draw(st.permutations(range(case.rank)))
    at = case.choose([*range(case.rank + 1), *range(-case.rank - 1, 0)])
    ones = [axis for axis, size in enumerate(case.shape) if size == 1]

    def function(t):
        s = tf.reduce_sum(t, case.axis)
        return (
            tf.transpose(t, order),
            tf.transpose(tf.complex(t, -t), order, conjugate=True),
            tf.expand_dims(t, at),
            tf.expand_dims(s, min(max(at, -case.rank), case.rank - 1)),
            tf.squeeze(tf.expand_dims(t, at), [at]),
            tf.squeeze(t, ones),
            tf.squeeze(tf.expand_dims(t, at)),
            tf.bitcast(t, tf.int32),
            tf.bitcast(t, tf.int16),
            tf.reshape(tf.transpose(t, order), [-1, case.shape[order[-1]]]),
            tf.reshape(s, [-1]),
        )

    case.check(function, exact=True, whole=["Reshape", "Squeeze"])


def test_axes_are_put_behind_a_batch_that_is_in_the_middle():
    def function(x):
        turned = tf.transpose(x, [1, 0, 2])
        return tf.expand_dims(turned, -1), tf.expand_dims(turned, -3), tf.expand_dims(turned, 1)

    report = check(function, ROWS)
    assert not [each for each in report.exchanged if each.why != "it is returned"]


@sample(FEWER_ROWS, replicas=[3], whole=None, exact=True)
def test_bits_of_two_examples_are_those_of_one_number(x):
    pair = tf.transpose(tf.ensure_shape(x, [2, 4, 6]), [1, 2, 0])
    return tf.bitcast(pair, tf.int64), tf.bitcast(tf.bitcast(pair, tf.int64), tf.float32)


def test_a_summand_takes_a_shape_that_is_summed():
    def function(x, sizes):
        return tf.reshape(tf.reduce_sum(x, 0), tf.reduce_sum(sizes, 0))

    sizes = np.array([[3, 0], [0, 2], [1, 0], [0, 4], [0, 0], [0, 0], [0, 0]], np.int32)
    check(function, ROWS, sizes, replicas=[3], whole=None)


@sample(ROWS, replicas=[3], whole=None, exact=True)
def test_a_batch_without_elements_takes_other_shapes(x):
    none = x[:, :0]
    return (
        tf.reshape(none, [length(x), 0]),
        tf.reshape(none, [0, length(x), 6]),
        tf.reshape(none, [length(x), 2, 0, 3]),
    )


@pytest.mark.parametrize("count", [7, 2])
def test_the_batchs_own_size_tells_what_sizes_that_only_the_step_knows_leave_open(count):
    x = np.arange(count * 20, dtype=np.float32).reshape(count, 5, 4)
    numbers = tf.Variable([5, 4, 4])

    def function(x):
        n, (five, four) = tf.shape(x)[0], tf.unstack(tf.unique(numbers)[0], 2)
        turned = tf.transpose(x, [1, 0, 2])
        return (
            tf.reshape(x, [n, four, -1]),
            tf.reshape(tf.concat([x, -x, x], 0), [3 * n, four, -1]),
            tf.reshape(turned, [five, -1, n, 4]),
            tf.reshape(turned, [five, -1, 2 * n, 2]),
        )

    check(function, x, replicas=[3], exact=True)


def test_a_shape_of_a_length_that_only_the_step_knows_is_that_of_one_device():
    numbers = tf.Variable([-1, 5, 5])

    def function(x):
        found = tf.reshape(x, tf.unique(numbers)[0])
        found.set_shape([None, 5])
        return found * 2

    check(function, np.arange(140, dtype=np.float32).reshape(7, 5, 4), replicas=[3], whole=None)


@sample(lambda length: ROWS[:length], whole=None, exact=True)
def test_an_axis_is_added_to_a_batch_of_any_number_of_axes(x):
    return tf.expand_dims(of_any_axes(x), 0), tf.expand_dims(of_any_axes(x), -1)


def test_without_elements_a_size_says_nothing_of_the_batch():
    number, width = tf.Variable(5), tf.Variable(0)  # known only when the step runs

    def function(x):
        columns = x[:, 0, : tf.identity(width)]
        count = tf.shape(columns)[1]
        return (
            tf.reshape(columns, [tf.identity(number), count]),
            tf.reshape(columns, [5, count]),
        )

    check(function, ROWS, replicas=[3], whole=None, exact=True)
    number.assign(7)
    width.assign(2)

    def of_as_many(x):
        columns = x[:, 0, : tf.identity(width)]
        return tf.reshape(columns, [tf.identity(number), tf.shape(columns)[1]])

    check(of_as_many, ROWS, replicas=[3], whole=None, exact=True)


@sample(ROWS[:, :, :5], np.array([7, 20]), replicas=[3], whole=None, exact=True)
def test_a_batch_is_the_shape_of_another(x, sizes):
    found = tf.reshape(x, sizes)
    found.set_shape([None, 20])
    return found * 2
