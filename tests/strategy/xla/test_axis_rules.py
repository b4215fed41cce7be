"""Rules of operations, by what they say: along a group, an operation on shards gives shards.

Each group of an operation's axes is sharded in two. The operation on each half, all operands that
have an axis in the group halved, must give that half of each result that has one, and else the same
result, or partials whose sum is the result, where the rule says so.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from strategy.xla.test_auto_layout import derived, sharded

from tfdp.partition.source import SourceGraph
from tfdp.strategy.xla import axis_rules
from tfdp.strategy.xla.axis_groups import AxisGroups, Weight

SHARDS = 2


def walked(function, x, w):
    """Returns the groups of a function of an argument and a weight, and a wire of each result."""
    variable = tf.Variable(w)

    def program(given):
        results = tf.nest.flatten(function(given, variable.read_value()))
        return [tf.add(each, 0, f"end{place}") for place, each in enumerate(results)]

    traced = tf.function(program).get_concrete_function(tf.TensorSpec(x.shape, x.dtype))
    (handle,) = [place for place, each in enumerate(traced.inputs) if each.dtype == tf.resource]
    weight = Weight("weight", w.shape, w.nbytes)
    # The argument is as what a layer computes: were it a batch, none of its axes would be sharded.
    groups = AxisGroups(SourceGraph(traced.graph), 0, {handle: weight}, SHARDS)
    axis_rules.walk(groups)
    ends = {task.op.name: (task, 0) for task in groups.tasks}
    given = {wire[1]: wire for task in groups.tasks for wire in task.inputs if wire[0].op is None}
    results = [ends[f"end{place}"] for place in range(len(traced.outputs))]
    return groups, [given[0], given[handle]], results


def axes_in(groups, group, wire, shape):
    return [axis for axis in range(len(shape)) if groups.group(wire, axis) is group]


def shard(value, axes, number):
    """One half of a value along the only axis that a group has of it."""
    if not axes:
        return value
    (axis,) = axes
    return np.split(value, SHARDS, axis)[number]


def checked(function, x, w):
    """Checks each group that needs nothing gathered; returns how many have shards and partials."""
    groups, operands, ends = walked(function, x, w)
    whole = [np.asarray(each) for each in tf.nest.flatten(function(x, w))]
    every = {
        id(group): group
        for wire, value in zip(operands, (x, w), strict=True)
        for axis, size in enumerate(value.shape)
        if size > 1
        for group in [groups.group(wire, axis)]
    }
    of_shards = of_partials = 0
    for group in every.values():
        kinds = {key[1] for key in group.sent}
        if group.gathered_by or kinds & {"gathered", "reduced", "moved"}:
            continue  # not on shards alone
        if any("table" in uses for uses in group.uses.values()):
            continue  # partials of rows that a shard of a table has
        given = [
            axes_in(groups, group, *each) for each in zip(operands, (x.shape, w.shape), strict=True)
        ]
        made = [
            axes_in(groups, group, *each)
            for each in zip(ends, [value.shape for value in whole], strict=True)
        ]
        if any(len(axes) > 1 for axes in [*given, *made]):
            continue
        found = [
            [
                np.asarray(each)
                for each in tf.nest.flatten(
                    function(shard(x, given[0], number), shard(w, given[1], number))
                )
            ]
            for number in range(SHARDS)
        ]
        if "summed" in kinds:
            of_partials += 1
            for value, *each in zip(whole, *found, strict=True):
                np.testing.assert_allclose(sum(each), value, rtol=1e-5, atol=1e-5)
            continue
        of_shards += 1
        for number, each in enumerate(found):
            for value, axes, result in zip(whole, made, each, strict=True):
                np.testing.assert_allclose(result, shard(value, axes, number), rtol=1e-5, atol=1e-5)
    return of_shards, of_partials


def split_heads(x, w):
    return tf.reshape(x @ w, [x.shape[0], -1, 4])


# By what it shows: a function, the shapes of its argument and its weight, and how many groups have
# shards of all results, and how many give partials.
PROGRAMS = {
    "by columns and by rows": (lambda x, w: x @ w, (4, 6), (6, 8), (2, 1)),
    "of a transposed weight": (
        lambda x, w: tf.matmul(x, w, transpose_b=True),
        (4, 6),
        (8, 6),
        (2, 1),
    ),
    "a product of batches": (lambda x, w: tf.matmul(x, w), (4, 2, 6), (4, 6, 8), (3, 1)),
    "by heads": (lambda x, w: tf.einsum("btd,dhk->bthk", x, w), (2, 4, 6), (6, 8, 2), (4, 1)),
    "of heads": (lambda x, w: tf.einsum("bthk,hkd->btd", x, w), (2, 4, 8, 2), (8, 2, 6), (3, 2)),
    "of experts": (lambda x, w: tf.einsum("td,edh->eth", x, w), (4, 6), (8, 6, 2), (3, 1)),
    "elementwise": (lambda x, w: tf.nn.relu(x) * w, (4, 8), (8,), (2, 0)),
    "broadcast": (lambda x, w: x + w, (4, 1, 8), (6, 8), (3, 0)),
    "a bias": (lambda x, w: tf.nn.bias_add(x, w), (4, 6, 8), (8,), (3, 0)),
    "a normalization of the last axis": (lambda x, w: tf.nn.softmax(x) * w, (4, 8), (8,), (1, 0)),
    "a normalization of channels": (
        lambda x, w: tf.compat.v1.nn.fused_batch_norm(
            x, w, w, mean=w, variance=w * w + 1.0, is_training=False
        )[0],
        *((2, 4, 4, 8), (8,), (4, 0)),
    ),
    "a convolution": (
        lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"),
        *((2, 4, 4, 6), (3, 3, 6, 8), (2, 1)),
    ),
    "a transposed convolution": (
        lambda x, w: tf.nn.conv2d_transpose(x, w, [x.shape[0], 4, 4, w.shape[2]], 1, "SAME"),
        *((2, 4, 4, 6), (3, 3, 8, 6), (2, 1)),
    ),
    "a convolution of each channel": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
        *((2, 4, 4, 6), (3, 3, 6, 1), (2, 0)),
    ),
    "pooling": (lambda x, w: tf.nn.max_pool2d(x + w, 2, 2, "VALID"), (2, 4, 4, 8), (8,), (2, 0)),
    "a table's columns": (
        lambda x, w: tf.gather(w, tf.cast(x, "int32") % 2),
        *((4, 6), (2, 8), (3, 0)),
    ),
    "a sum over an axis": (lambda x, w: tf.reduce_sum(x * w, 1), (4, 6, 8), (8,), (2, 0)),
    "a mean that keeps its axis": (
        lambda x, w: tf.reduce_mean(x * w, 1, keepdims=True),
        *((4, 6, 8), (8,), (2, 0)),
    ),
    "cumulative sums": (lambda x, w: tf.cumsum(x * w, 1), (4, 6, 8), (8,), (2, 0)),
    "losses": (
        lambda x, w: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(x), x @ w),
        *((4, 8), (8, 8), (1, 0)),
    ),
    "a transpose": (
        lambda x, w: tf.transpose(x * w, [2, 0, 1]),
        *((4, 6, 8), (8,), (3, 0)),
    ),
    "split heads": (split_heads, (4, 6), (6, 8), (2, 1)),
    "merged heads": (
        lambda x, w: tf.reshape(x, [x.shape[0], -1]) @ w,
        *((4, 8, 2), (16, 6), (2, 1)),
    ),
    "axes of one entry": (
        lambda x, w: tf.squeeze(tf.expand_dims(x, 1) * w[:, None], 1),
        *((4, 8), (1, 8), (2, 0)),
    ),
    "joined": (lambda x, w: tf.concat([x, x * w], 0), (3, 8), (8,), (1, 0)),
    "stacked": (lambda x, w: tf.stack([x, x * w], 1), (4, 8), (8,), (2, 0)),
    "taken apart": (lambda x, w: tf.split(x * w, 3, 0), (3, 8), (8,), (1, 0)),
    "unstacked": (lambda x, w: tf.unstack(x * w, axis=1), (4, 3, 8), (8,), (2, 0)),
    "a slice": (lambda x, w: (x * w)[:, 1:3, ..., tf.newaxis], (4, 6, 8), (8,), (2, 0)),
    "an entry": (lambda x, w: (x * w)[:, -1], (4, 6, 8), (8,), (2, 0)),
    "padded": (lambda x, w: tf.pad(x * w, [[0, 0], [1, 1], [0, 0]]), (4, 6, 8), (8,), (2, 0)),
    "repeated": (lambda x, w: tf.tile(x * w, [1, 3, 1]), (4, 6, 8), (8,), (2, 0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_along_a_group_operations_on_shards_give_shards(name):
    function, x, w, expected = PROGRAMS[name]
    draws = np.random.default_rng(7)
    x, w = (draws.uniform(0.5, 2.0, shape).astype("float32") for shape in (x, w))
    assert checked(function, x, w) == expected


@pytest.mark.parametrize("seed", range(20))
def test_reshaped_axes_have_the_same_entries(seed):
    draws = np.random.default_rng(seed)
    old, new = [], []
    for _ in range(draws.integers(1, 4)):  # axes that are kept, merged or split
        sizes = draws.integers(1, 5, draws.integers(1, 4)).tolist()
        merged = [int(np.prod(sizes))]
        these, those = ((sizes, merged), (merged, sizes), (sizes, sizes))[draws.integers(3)]
        old, new = old + these, new + those
    places = np.arange(np.prod(old)).reshape(old)
    for olds, news in axis_rules.reshaped(old, new):
        # Of an entry its place along the old axes says that along the new ones.
        flat = np.ravel_multi_index(
            [np.indices(old)[axis] for axis in olds], [old[axis] for axis in olds]
        )
        others = np.ravel_multi_index(
            [np.indices(new)[axis] for axis in news], [new[axis] for axis in news]
        )
        np.testing.assert_array_equal(flat.reshape(new), others)
    assert places.size == np.prod(new)
    long = {axis for axis, size in enumerate(old) if size > 1}
    assert {axis for olds, _ in axis_rules.reshaped(old, new) for axis in olds} == long


PARTED = {
    "halves": (lambda x, w: tf.split(x * w, 2, 1), "moved"),
    "of other sizes": (lambda x, w: tf.split(x * w, [4, 2, 6], 1), "moved"),
    "that are not divided": (lambda x, w: tf.split(x * w, [3, 9], 1), "gathered"),
    "a slice": (lambda x, w: (x * w)[:, 2:8], "moved"),
    "of every second entry": (lambda x, w: (x * w)[:, ::2], "gathered"),
    "from a given place": (lambda x, w: tf.slice(x * w, [0, 4], [4, 6]), "moved"),
    "joined": (lambda x, w: tf.concat([x, x * w], 1), "moved"),
    "padded": (lambda x, w: tf.pad(x * w, [[0, 0], [6, 6]]), "gathered"),
    "repeated": (lambda x, w: tf.tile(x * w, [1, 2]), "gathered"),
    "of a weight": (lambda x, w: [x[:, :6] * w[:6], w], "gathered"),
}


@pytest.mark.parametrize("name", PARTED)
def test_parts_that_shards_divide_are_moved_and_others_gathered(name):
    function, how = PARTED[name]
    x, w = np.ones([4, 12], "float32"), np.ones([12], "float32")
    groups, (_, weight), ends = walked(function, x, w)
    group = groups.group(weight, 0)
    kinds = {key[1] for key in group.sent}
    assert how in kinds and ("moved" in kinds) == (how == "moved")
    results = tf.nest.flatten(function(x, w))
    for end, result in zip(ends, results, strict=True):
        is_in_it = groups.group(end, len(result.shape) - 1) is group
        assert is_in_it == (how == "moved" or result.shape == w.shape)


def test_of_a_part_that_is_moved_a_device_is_sent_its_shard_and_that_of_its_gradient():
    x, w = np.ones([4, 12], "float32"), np.ones([12], "float32")
    groups, (_, weight), _ = walked(lambda x, w: tf.split(x * w, [4, 8], 1), x, w)
    sent = groups.group(weight, 0).sent.values()
    assert {each.kind for each in sent} == {"all-to-all"}
    assert sorted(each.bytes for each in sent) == [4 * 4 * 4 // 2] * 2 + [4 * 8 * 4 // 2] * 2


def test_what_a_loop_computes_with_is_replicated():
    given = keras.Input([6, 16])
    found = derived(keras.Model(given, layers.LSTM(8, name="cells", unroll=False)(given)))
    assert not sharded(found)
    assert "needs it gathered" in found["cells/lstm_cell/recurrent_kernel"].why
