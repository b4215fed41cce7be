"""Variables of which each replica holds a part are read and written as on one device."""

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import strategy

from tfdp.base.sharding import even_sharding
from tfdp.partition import part_of_sum


def rows(count, width):
    return np.random.default_rng(count).normal(size=(count, width)).astype("float32")


def sharded_variable(replicas, value):
    """Returns a variable of parts, and how it is cut."""
    with strategy(replicas).scope():
        whole = tf.Variable(value, trainable=False)
    (cut,) = even_sharding([value.shape], replicas)
    return strategy(replicas).extended.replicas.parted(whole, cut), cut


def kinds(step):
    return [each.kind for each in step.report.exchanged]


@pytest.mark.parametrize("shape", [(5, 3), (2, 7), (7,)])
@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_slots_are_updated_in_parts_and_weights_are_whole(shape, replicas):
    size = int(np.prod(shape))
    start = np.arange(size, dtype="float32").reshape(shape)
    slot, cut = sharded_variable(replicas, start)
    with strategy(replicas).scope():
        weight = tf.Variable(start)

    @strategy(replicas).partitioned
    def step(x):
        gradient = part_of_sum(tf.reshape(tf.reduce_sum(x, 0), shape), cut)
        slot.assign(0.9 * slot + gradient * gradient)
        weight.assign_sub(0.1 * gradient / (1.0 + tf.sqrt(slot + 1.0)))
        return tf.norm(gradient)

    x = rows(5, size)
    gradient = x.sum(0).reshape(shape)
    norm = step(x)
    kept = 0.9 * start + gradient**2
    expected = start - 0.1 * gradient / (1 + np.sqrt(kept + 1))
    np.testing.assert_allclose(norm, np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(slot.read_value(), kept, rtol=1e-5)
    np.testing.assert_allclose([c.numpy() for c in weight.values], [expected] * replicas, rtol=1e-5)
    assert [part.shape.as_list() for part in slot.values] == [
        list(cut.part_shape(rank)) for rank in range(replicas)
    ]
    assert sorted(kinds(step)) == ["gather of parts", "sum", "sum of parts"]


def test_parts_of_many_variables_travel_together():
    made = [sharded_variable(2, np.ones([4, k], "float32")) for k in (1, 2, 3)]
    with strategy(2).scope():
        weights = [tf.Variable(tf.ones([4, k])) for k in (1, 2, 3)]

    @strategy(2).partitioned
    def step(x):
        for (slot, cut), weight in zip(made, weights, strict=True):
            gradient = tf.reduce_sum(x[:, :, tf.newaxis] * tf.ones_like(weight), 0)
            slot.assign_add(part_of_sum(gradient, cut))
            weight.assign_sub(slot)
        return tf.constant(0.0)

    step(np.ones([3, 4], "float32"))
    assert kinds(step) == ["sum of parts", "gather of parts"]
    for weight in weights:
        assert (weight.numpy() == -3).all()


def test_what_needs_the_whole_gets_it():
    value = np.arange(12, dtype="float32").reshape(4, 3)
    slot, _ = sharded_variable(2, value)

    @strategy(2).partitioned
    def step(x):
        found = tf.linalg.svd(slot, compute_uv=False), tf.matmul(slot, slot, transpose_a=True)
        slot.assign(tf.reverse(slot, [0]) + tf.reduce_mean(x))
        return found

    singular, product = step(np.ones([3, 1], "float32"))
    np.testing.assert_allclose(singular, np.linalg.svd(value, compute_uv=False), atol=1e-4)
    np.testing.assert_allclose(product, value.T @ value, rtol=1e-5)
    np.testing.assert_allclose(slot.read_value(), value[::-1] + 1)


def test_a_shard_is_gathered_where_a_condition_chooses_between_it_and_a_partial():
    value = np.arange(12, dtype="float32").reshape(4, 3)
    slot, _ = sharded_variable(2, value)
    chosen = np.arange(12).reshape(4, 3) % 5 > 1

    @strategy(2).partitioned
    def step(x):
        return tf.where(chosen, tf.reshape(tf.reduce_sum(x, 0), [4, 3]), slot)

    x = rows(5, 12)
    found = step(x)
    np.testing.assert_allclose(found, np.where(chosen, x.sum(0).reshape(4, 3), value), rtol=1e-5)
    assert sorted(kinds(step)) == ["gather", "sum"]


@pytest.mark.parametrize("shape", [(6, 2), (2, 6), (2, 6, 2)])
@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_rows_are_written_to_the_parts_that_have_them(shape, replicas):
    if shape[0] < replicas and shape[1] < replicas:
        pytest.skip("it cannot be cut")
    start = np.zeros(shape, "float32")
    slot, _ = sharded_variable(replicas, start)

    @strategy(replicas).partitioned
    def step(places, values):
        slot.scatter_sub(tf.IndexedSlices(values, places))
        slot.scatter_add(tf.IndexedSlices(values[:1] * 3, places[:1]))
        return tf.constant(0.0)

    places = np.array([1, 0, 1, shape[0] - 1, 1])
    values = rows(5, int(np.prod(shape[1:]))).reshape(5, *shape[1:])
    step(places, values)
    np.subtract.at(start, places, values)
    start[places[0]] += 3 * values[0]
    np.testing.assert_allclose(slot.read_value(), start, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", [6, -1])
def test_rows_that_the_variable_does_not_have_are_an_error(place):
    slot, _ = sharded_variable(2, np.zeros((6, 2), "float32"))

    @strategy(2).partitioned
    def step(places, values):
        slot.scatter_add(tf.IndexedSlices(values, places))

    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        step(np.array([0, place]), np.ones([2, 2], "float32"))


def test_parts_are_used_in_branches_and_loops():
    slot, cut = sharded_variable(2, np.ones((4, 2), "float32"))
    with strategy(2).scope():
        weight = tf.Variable(tf.ones([4, 2]))

    @strategy(2).partitioned
    def step(x):
        gradient = tf.reduce_sum(x, 0, keepdims=True) * tf.ones_like(weight)

        def update():
            part = part_of_sum(gradient, cut)
            slot.assign_add(part)
            weight.assign_sub(slot)
            return tf.reduce_sum(slot)

        total = tf.cond(tf.reduce_sum(x) > 0, update, lambda: tf.constant(0.0))
        for _ in tf.range(2):
            slot.assign(slot * 2.0)
        return total

    x = np.array([[1, 0], [0, 2], [1, 1]], "float32")
    assert float(step(x)) == pytest.approx(28)
    np.testing.assert_allclose(weight.numpy(), [[-2, -3]] * 4)
    np.testing.assert_allclose(slot.read_value(), [[12, 16]] * 4)
    assert step(-x) == 0
    np.testing.assert_allclose(slot.read_value(), [[48, 64]] * 4)


def weights_of(replicas, *shapes):
    """Returns weights that are cut, trained by a tape, with what they hold."""
    found = []
    for number, shape in enumerate(shapes):
        value = np.random.default_rng(number).normal(size=shape).astype("float32")
        with strategy(replicas).scope():
            whole = tf.Variable(value)
        (cut,) = even_sharding([value.shape], replicas)
        found.append((strategy(replicas).extended.replicas.parted(whole, cut), cut, value))
    return found


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_weights_that_are_cut_are_gathered_layer_by_layer_and_again_for_gradients(replicas):
    made = weights_of(replicas, (4, 8), (8, 6), (6, 3))

    @strategy(replicas).partitioned
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for weight, _, _ in made:
                y = tf.tanh(y @ weight)
            loss = tf.reduce_sum(y**2)
        gradients = tape.gradient(loss, [weight for weight, _, _ in made])
        for (weight, cut, _), gradient in zip(made, gradients, strict=True):
            weight.assign_sub(0.01 * part_of_sum(gradient, cut) + 0.1 * weight)
        return loss

    x = rows(5, 4)
    plain = [tf.Variable(value) for _, _, value in made]
    with tf.GradientTape() as tape:
        y = x
        for weight in plain:
            y = tf.tanh(y @ weight)
        loss = tf.reduce_sum(y**2)
    for weight, gradient in zip(plain, tape.gradient(loss, plain), strict=True):
        weight.assign_sub(0.01 * gradient + 0.1 * weight)
    np.testing.assert_allclose(step(x), loss, rtol=1e-5)
    for (weight, _, _), expected in zip(made, plain, strict=True):
        np.testing.assert_allclose(weight.read_value(), expected, rtol=1e-4, atol=1e-6)
    # The last layer's gradient uses it while it is there, and the first one's weight has no use.
    of_parts = [each for each in kinds(step) if each != "sum"]
    assert of_parts.count("gather of parts") == 4
    assert of_parts.index("sum of parts") > 3


def test_the_shape_of_a_weight_is_the_wholes():
    ((weight, _, _),) = weights_of(2, (5, 3))

    @strategy(2).partitioned
    def step(x):
        shape = tf.raw_ops.VariableShape(input=weight.handle, out_type=tf.int64)
        return shape, tf.zeros(shape, tf.float32) + tf.reduce_sum(x)

    shape, filled = step(np.ones([2, 1], "float32"))
    assert shape.numpy().tolist() == [5, 3]
    np.testing.assert_array_equal(filled, np.full((5, 3), 2.0))


def test_operations_that_need_sums_and_weights_by_turns_come_to_an_end():
    made = weights_of(2, (6, 6), (6,), (6,))
    (first, _, a), (second, _, b), (third, _, c) = made

    @strategy(2).partitioned
    def step(x):
        early = tf.where(x > 0, second, tf.reduce_sum(x, 0))
        late = tf.where(x @ first > 0, third, tf.reduce_sum(2 * x, 0))
        return early + late

    x = rows(5, 6)
    expected = np.where(x > 0, b, x.sum(0)) + np.where(x @ a > 0, c, 2 * x.sum(0))
    np.testing.assert_allclose(step(x), expected, rtol=1e-5, atol=1e-5)
    assert kinds(step).count("gather of parts") == 2
