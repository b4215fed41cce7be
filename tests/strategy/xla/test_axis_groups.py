"""Groups of axes: what is put together, what depends on what, and what is sent for them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from strategy.xla.test_auto_layout import COLUMNS, ROWS, derived, sharded

from tfdp.partition.source import SourceGraph
from tfdp.strategy.xla.axis_groups import AxisGroups, Group, MeshCollective, Weight

NUM_TENSORS, RANK, SIZE = 6, 3, 4


def tensors(*shapes):
    """Returns the groups of a program's tensors, each of a shape, and a wire of each of these."""

    def program(*given):
        return [tf.abs(each) for each in given]

    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    traced = tf.function(program).get_concrete_function(*specs)
    groups = AxisGroups(SourceGraph(traced.graph), 0, {}, 2)
    return groups, [task.inputs[0] for task in groups.tasks]


def are_joined(groups, wires):
    """Whether each axis of the tensors is in the group of each other."""
    found = [groups.group(wire, axis) for wire in wires for axis in range(RANK)]
    return np.array([[one is other for other in found] for one in found])


def reachable(joined):
    """The transitive closure of what is joined, by powers of its matrix."""
    found = joined | joined.T | np.eye(len(joined), dtype=bool)
    for _ in range(len(joined).bit_length()):
        found = found @ found
    return found


@pytest.mark.parametrize("seed", range(8))
def test_axes_are_in_one_group_if_pairs_connect_them_and_are_longer_than_one(seed):
    draws = np.random.default_rng(seed)
    shapes = draws.choice([1, SIZE], (NUM_TENSORS, RANK), p=[0.2, 0.8])
    groups, wires = tensors(*shapes.tolist())
    is_long = shapes.ravel() > 1
    joined = np.zeros([NUM_TENSORS * RANK] * 2, bool)
    for one, other in draws.integers(0, NUM_TENSORS * RANK, (10, 2)).tolist():
        (wire, axis), (other_wire, other_axis) = divmod(one, RANK), divmod(other, RANK)
        groups.same(wires[wire], axis, wires[other_wire], other_axis)
        joined[one, other] = is_long[one] and is_long[other]
    np.testing.assert_array_equal(are_joined(groups, wires), reachable(joined))


@pytest.mark.parametrize("seed", range(8))
def test_alike_tensors_share_the_axes_that_broadcasting_pairs(seed):
    draws = np.random.default_rng(seed)
    result = draws.integers(2, 5, RANK).tolist()
    operand = [size if draws.random() < 0.7 else 1 for size in result][draws.integers(RANK) :]
    groups, (one, other) = tensors(result, operand)
    groups.alike(one, other)
    # Along an axis of the result an entry of the operand is found again, if it has that axis.
    paired = np.broadcast_to(np.arange(np.prod(operand)).reshape(operand), result)
    for axis in range(RANK):
        varies = (paired != paired.take([0], axis)).any()
        own = axis - RANK + len(operand)
        shared = own >= 0 and groups.group(one, axis) is groups.group(other, own)
        assert shared == varies


@pytest.mark.parametrize("seed", range(4))
def test_a_group_that_takes_another_has_what_both_had(seed):
    draws = np.random.default_rng(seed)
    wires = tensors(*[[SIZE]] * 4)[1]

    def drawn():
        kinds = [("rows", "columns", "table")[kind] for kind in draws.integers(0, 3, 2)]
        sent = {
            (wires[place], "summed"): MeshCollective("all-reduce", int(draws.integers(9)), None)
            for place in draws.integers(0, 4, 2)
        }
        return Group(
            [(int(draws.integers(3)), 0)],
            {int(draws.integers(3)): set(kinds)},
            sent,
            bool(draws.integers(2)),
            (None, "Sort", "TopK")[draws.integers(3)],
            int(draws.integers(8)),
            int(draws.integers(8)),
        )

    one, other = drawn(), drawn()
    pairs = {
        (weight, use) for each in (one, other) for weight in each.uses for use in each.uses[weight]
    }
    weights, sent = one.weights + other.weights, {**other.sent, **one.sent}
    flags = one.is_data or other.is_data, one.gathered_by or other.gathered_by
    bits = {
        name: {bit for bit in range(3) for each in (one, other) if getattr(each, name) >> bit & 1}
        for name in ("summed", "added")
    }
    one.take(other)
    assert one.weights == weights and one.sent == sent
    assert {(weight, use) for weight, uses in one.uses.items() for use in uses} == pairs
    assert (one.is_data, one.gathered_by) == flags
    for name, each in bits.items():
        assert getattr(one, name) == sum(2**bit for bit in each)


def test_tensors_with_several_long_axes_say_which_groups_they_have_together():
    groups, (one, other, flat) = tensors([4, 6], [6, 8], [6, 1])
    groups.same(one, 1, other, 0)
    groups.same(flat, 0, other, 0)
    first, shared, last = groups.group(one, 0), groups.group(one, 1), groups.group(other, 1)
    found = [[id(each) for each in together] for together in groups.together()]
    assert sorted(found) == sorted([[id(first), id(shared)], [id(shared), id(last)]])


def test_a_weight_that_is_sent_for_twice_is_sent_once_for_a_tensor():
    groups, (x, _) = tensors([4, 6], [4, 6])
    (task, *_) = groups.tasks
    for _ in range(2):
        groups.gather(task, x, 1)
        groups.reduce(x, 1, 16)
    assert list(groups.group(x, 1).sent.values()) == [
        MeshCollective("all-gather", 4 * 4 * 6, None),
        MeshCollective("all-reduce", 16, None),
    ]
    groups.gather(task, x, 7)  # no axis of its
    assert groups.group(x, 1).gathered_by is None


def block(is_residual, is_wide):
    """Two products and an addition, or none; the second is summed along the first one's columns."""
    given = keras.Input([16])
    x = layers.Dense(16, name="before")(given)
    inner = layers.Dense(32 if is_wide else 16, "relu", name="up")(x)
    y = layers.Dense(16, name="down")(inner)
    return keras.Model(given, x + y if is_residual else y)


def test_an_axis_that_is_added_to_what_is_summed_along_it_is_a_residual_stream():
    found = derived(block(is_residual=True, is_wide=True))
    assert "a residual stream" in found["before/kernel"].why
    assert sharded(found) == {"up/kernel": COLUMNS, "up/bias": ("model",), "down/kernel": ROWS}
    # Without the addition the stream is no stream: its columns are sharded as any others.
    found = derived(block(is_residual=False, is_wide=False))
    assert "a residual stream" not in found["before/kernel"].why


def test_a_layer_that_is_called_again_is_no_residual_stream():
    x = given = keras.Input([16])
    up, down = layers.Dense(32, "relu", name="up"), layers.Dense(16, name="down")
    for _ in range(2):
        x = x + down(up(x))
    expected = {"up/kernel": COLUMNS, "up/bias": ("model",), "down/kernel": ROWS}
    assert sharded(derived(keras.Model(given, x))) == expected


def test_operations_of_the_backward_pass_are_not_walked():
    def step(x):
        w = tf.ones([4, 4])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.tanh(x @ w))
        return tape.gradient(loss, x)

    traced = tf.function(step).get_concrete_function(tf.TensorSpec([2, 4]))
    groups = AxisGroups(SourceGraph(traced.graph), 1, {1: Weight("none", (4,), 16)}, 2)
    types = [task.op.type for task in groups.tasks]
    assert "Tanh" in types and "TanhGrad" not in types and types.count("MatMul") == 1
