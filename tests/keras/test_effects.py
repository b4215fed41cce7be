"""Side effects are one device's; in loops of one's own each replica has its own order of them."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

from tfdp.keras.run.effect_order import Effects

X, Y = harness.regression_data(14)


class Telling(keras.Model):
    """Calls Python before the gradient's sum and behind it, and uses what replicas share there."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.around, self.told = None, []

    def call(self, x):
        return self.dense(x)

    def tell(self, what, value):
        def told(value):
            self.told.append((what, value.shape, float(np.sum(value, dtype="float64"))))
            return value

        return tf.ensure_shape(tf.numpy_function(told, [value], value.dtype), value.shape)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(self.tell("inputs", x) + 0.1 * self.around.before())
            loss = self.compute_loss(x, y, outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [self.tell("gradient", gradients[0]), *gradients[1:]]
        self.around.behind(tf.reduce_sum(gradients[0]))
        self.optimizer.apply(gradients, self.trainable_variables)
        self.tell("weights", tf.convert_to_tensor(self.trainable_variables[0]))
        return {"loss": loss}


class Variable:
    """Made outside of the scope."""

    def __init__(self):
        self.variable = tf.Variable(0.0)

    def before(self):
        return self.variable.read_value()

    def behind(self, total):
        self.variable.assign_add(0.0 * total + 1.0)

    def count(self):
        return self.before().numpy()


class Table(Variable):
    """From its one key to how often it was written."""

    def __init__(self):
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        self.key = tf.constant([0], tf.int64)

    def before(self):
        return tf.reshape(self.table.lookup(self.key), [])

    def behind(self, total):
        self.table.insert(self.key, self.table.lookup(self.key) + 0.0 * total + 1.0)


def telling():
    model = Telling()
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return model


@harness.in_one_process
@pytest.mark.parametrize("shared", tiers.first_of(Variable, Table))
def test_side_effects_are_one_devices(shared, trains_as_one_device):
    def use(model):
        model.around = shared()
        harness.fit_arrays(model, X, Y, batch_size=7)
        whats, shapes, sums = zip(*model.told, strict=True)
        return whats, shapes, np.array(sums, "float32"), model.around.count()

    trains_as_one_device(telling, use)


@harness.in_one_process
@pytest.mark.parametrize("shared", tiers.first_of(Variable, Table))
def test_what_replicas_share_is_used_in_rounds_around_the_sums(shared, replicas):
    """In a loop of one's own each replica does it."""
    model = harness.build_in_scope(telling, replicas)
    model.around = shared()
    strategy = model.distribute_strategy
    run = tf.function(lambda *batch: strategy.run(model.train_step, args=(batch,)))
    with strategy.scope():
        model.dense.build((None, 5))
        model.optimizer.build(model.trainable_variables)
    for batch in strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)
    ):
        run(*batch)
    assert model.around.count() == 2 * replicas
    told = [what for what, *_ in model.told]
    assert sorted(told) == sorted(["inputs", "gradient", "weights"] * 2 * replicas)


def test_what_is_no_side_effect_or_has_a_resource_is_left_as_it_is():
    variable = tf.Variable(1.0)

    @tf.function
    def traced(x):
        with Effects().of_replica():
            tf.debugging.assert_positive(x)
            variable.assign_add(x)
            tf.print(x, output_stream="file:///dev/null")
        return x

    graph = traced.get_concrete_function(tf.TensorSpec([])).graph
    apart = {
        op.type: [other.type for other in op.control_inputs]
        for op in graph.get_operations()
        if "_independent_side_effects" in op.node_def.attr
    }
    assert "AssignAddVariableOp" not in apart
    assert "PrintV2" in apart
    assert any(set(before) & apart.keys() for before in apart.values())
    np.testing.assert_equal(traced(tf.constant(2.0)).numpy(), 2.0)
    assert variable.numpy() == 3.0


@harness.in_one_process
def test_what_replicas_share_is_not_written_where_they_communicate():
    strategy, variable = harness.strategy(2), tf.Variable(0.0)

    @tf.function
    def step(x):
        def both():
            total = tf.distribute.get_replica_context().all_reduce("SUM", x)
            return variable.assign_add(total)

        return strategy.run(lambda: tf.cond(x > 0.0, both, lambda: x))

    with pytest.raises(RuntimeError, match=r"'cond'.*`strategy.scope\(\)`"):
        step(tf.constant(1.0))
