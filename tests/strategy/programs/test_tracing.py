"""What is made in the midst of a trace is what it would be if it had been there before."""

import contextlib

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

import tfdp
from tfdp import compression, synchronization

pytestmark = pytest.mark.slow

X, Y = harness.regression_data(12)

PATHS = {
    "shard parameters": {"shard": "parameters"},
    "sums": {},
    "shard optimizer": {"shard": "optimizer"},
    "shard gradients": {"shard": "gradients"},
    "shard and cast": {"shard": "gradients", "compression": compression.Cast("bfloat16")},
    "LocalSGD": {"synchronization": synchronization.LocalSGD(2)},
    "DiLoCo": {"synchronization": synchronization.DiLoCo(2)},
    "Gossip": {"synchronization": synchronization.Gossip()},
    "Delayed": {"synchronization": synchronization.Delayed()},
    "Cast": {"compression": compression.Cast("bfloat16")},
    "Int8": {"compression": compression.Int8(smallest=1)},
    "Sign": {"compression": compression.ErrorFeedback(compression.Sign(smallest=1))},
    "TopK": {"compression": compression.ErrorFeedback(compression.TopK(0.5, smallest=1))},
    "PowerSGD": {"compression": compression.PowerSGD(1, smallest=1)},
}


class BornInItsFirstCall(keras.Model):
    """Makes all that it has when it is called, and its optimizer's state in its first step."""

    def __init__(self):
        super().__init__()
        seeded = keras.initializers.GlorotUniform(3)
        self.hidden = keras.layers.Dense(6, "tanh", kernel_initializer=seeded)
        self.head = keras.layers.Dense(1, kernel_initializer=seeded)
        self.own_optimizer = keras.optimizers.Adam(0.1)
        self.calls = None

    def make(self):
        self.calls = tf.Variable(0.0, trainable=False)
        self.scale = tf.Variable(tf.ones([6]))
        self.norm, self.seeds = keras.metrics.Mean(), keras.random.SeedGenerator(5)
        with tf.init_scope():  # one device asks for that, too
            rows = tf.lookup.KeyValueTensorInitializer([0, 1], [1.0, 2.0])
            self.table = tf.lookup.StaticHashTable(rows, 1.0)

    def call(self, x):
        if self.calls is None:
            self.make()
        self.calls.assign_add(1.0)
        hidden = self.hidden(x) * self.scale * self.table.lookup(tf.constant([1]))
        hidden += keras.random.normal(tf.shape(hidden), stddev=0.1, seed=self.seeds)
        self.norm.update_state(tf.reduce_mean(hidden))
        return self.head(hidden)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.own_optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        self.scale.assign_sub(tf.fill([6], 0.01 * loss))
        return {"loss": loss}


def born(strategy, how, early=False):
    """What two steps leave, in the order in which it was made."""
    harness.start_over()
    scope = contextlib.nullcontext() if strategy is None else strategy.scope()
    with scope:
        model = BornInItsFirstCall()
        model.compile()
        if early:
            model.make()
            model.hidden.build((None, 5))
            model.head.build((None, 6))
            model.built = True
            model.own_optimizer.build(model.trainable_variables)
    is_inside = strategy is not None and "in the scope" in how
    with strategy.scope() if is_inside else contextlib.nullcontext():
        if how.startswith("fit"):
            model.fit(X, Y, batch_size=6, shuffle=False, verbose=0)
        else:
            step = (tf.function if strategy is None else strategy.partitioned)(model.train_step)
            for k in (0, 6):
                step((tf.constant(X[k : k + 6]), tf.constant(Y[k : k + 6])))
    if strategy is not None and strategy.extended.replicas.exchange.synchronization:
        strategy.synchronize(model)
    own = [model.calls, model.scale, *model.norm.variables, model.seeds.state]
    layers = [*model.hidden.variables, *model.head.variables]
    return [np.asarray(each.numpy()) for each in (*own, *layers, *model.own_optimizer.variables)]


@pytest.mark.parametrize(
    ("path", "how"),
    tiers.first_of(
        ("shard parameters", "partitioned in the scope"),
        ("shard parameters", "fit"),
        *((path, how) for path in PATHS for how in ("fit in the scope", "partitioned")),
    ),
)
def test_state_born_in_a_trace_is_what_it_would_be_if_it_had_been_there(path, how, replicas):
    found = born(harness.strategy(replicas, **PATHS[path]), how)
    expected = born(harness.strategy(replicas, **PATHS[path]), "partitioned", early=True)
    harness.assert_close(found, expected, 1e-7)
    if path in ("sums", "shard parameters"):
        one = harness.once(lambda: born(None, "partitioned"))
        harness.assert_close(expected, one, harness.WEIGHT_TOLERANCE)


def test_what_begins_with_a_tensor_of_the_batch_is_refused_by_name():
    strategy = harness.strategy(2)
    made = []

    @strategy.partitioned
    def step(x):
        if not made:
            made.append(tf.Variable(tf.reduce_mean(x)))
        return x + made[0]

    with pytest.raises(ValueError, match=r"begins with Mean of the step's batch.*assign"):
        step(tf.constant(X))


def test_copies_of_what_is_made_in_a_trace_have_no_copies():
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(0.1, momentum=0.5)

    @strategy.partitioned
    def step(x):
        optimizer.apply([tf.reduce_mean(x, 0)], [weight])

    step(tf.ones([4, 1]))
    assert not any(hasattr(copy, "values") for copy in optimizer.variables[-1].value.values)
