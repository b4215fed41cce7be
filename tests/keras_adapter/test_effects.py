"""Side effects before and behind a sum over replicas: each replica has its own order of them."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

from tfdp.keras_adapter.variables.effects import Effects

X, Y = harness.regression_data(14)


class Telling(keras.Model):
    """Calls Python before the gradient's sum and behind it."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.told = []

    def call(self, x):
        return self.dense(x)

    def tell(self, what, value):
        def told(value):
            self.told.append((rank, what))
            return value

        # A number, not a tensor: what is computed with that would be the replica's own.
        rank = int(
            tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        )
        return tf.ensure_shape(tf.numpy_function(told, [value], value.dtype), value.shape)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(self.tell("inputs", x)))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [self.tell("gradient", gradients[0]), *gradients[1:]]
        self.optimizer.apply(gradients, self.trainable_variables)
        self.tell("weights", tf.convert_to_tensor(self.trainable_variables[0]))
        return {"loss": loss}


@pytest.mark.timeout(120)
def test_a_step_with_side_effects_around_its_sums_goes_on(trains_as_one_device, replicas):
    models = []

    def build():
        models.append(Telling())
        models[-1].compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return models[-1]

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, X, Y, batch_size=7))
    steps = len(models[0].told) // 3
    ranks = {rank for rank, _ in models[-1].told}
    for rank in ranks:
        own = [what for other, what in models[-1].told if other == rank]
        assert own == ["inputs", "gradient", "weights"] * steps
    assert len(ranks) == (1 if harness.CLUSTER_REPLICAS else replicas)


def test_what_is_no_side_effect_or_has_a_resource_is_left_as_it_is():
    variable = tf.Variable(1.0)

    @tf.function
    def traced(x):
        with Effects().of_replica(None):
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


class Counting(keras.Model):
    """Reads what replicas share before the gradient's sum, and writes it behind."""

    def __init__(self, around):
        super().__init__()
        self.dense = layers.Dense(1)
        self.around = around

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self.dense(x + 0.0 * self.around.before()))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.around.behind(tf.reduce_sum(gradients[0]))
        self.optimizer.apply(gradients, self.trainable_variables)
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


@harness.in_one_process
@pytest.mark.timeout(120)
@pytest.mark.parametrize("shared", tiers.first_of(Variable, Table))
def test_what_replicas_share_is_used_in_rounds_around_the_sums(shared, replicas, caplog):
    around = shared()

    def build():
        model = Counting(around)
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return model

    harness.train(build, lambda model: harness.fit_arrays(model, X, Y, batch_size=7), replicas)
    steps = around.count() / replicas
    assert steps == 2
    assert ("outside of `strategy.scope()`" in caplog.text) == (shared is Variable)


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
