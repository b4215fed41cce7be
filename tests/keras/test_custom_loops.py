"""Custom loops: the user scales the loss, as tf.distribute documents; the rest is one device's.

And loops that know nothing of replicas, of Keras' guide, in which all is one device's.
"""

import contextlib

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, optimizers

import tfdp

BATCH = 8


def sgd(**options):
    return optimizers.SGD(0.1, momentum=0.9, **options)


OPTIMIZERS = {
    "plain": sgd,
    "Adam": lambda: optimizers.Adam(0.05, weight_decay=0.1),
    "clipnorm": lambda: sgd(clipnorm=0.3),
    "global_clipnorm": lambda: sgd(global_clipnorm=0.3),
    "clipvalue": lambda: sgd(clipvalue=0.1),
    "accumulation": lambda: sgd(gradient_accumulation_steps=2, global_clipnorm=0.3),
    "a loss scale": lambda: optimizers.LossScaleOptimizer(
        sgd(global_clipnorm=0.3), initial_scale=64.0, dynamic_growth_steps=2
    ),
}
FAST = {"a loss scale"}


def loop(model, x, y, epochs=2, build_lazily=False):
    """The loop of tf.distribute's guide; on one device its strategy is TensorFlow's default one."""
    strategy = model.distribute_strategy
    optimizer = model.optimizer
    with strategy.scope():
        per_example = keras.losses.MeanSquaredError(reduction="none")
        tracker = keras.metrics.Mean()
        if not (build_lazily or optimizer.built):
            optimizer.build(model.trainable_variables)

    def step(batch):
        inputs, targets = batch
        with tf.GradientTape() as tape:
            values = per_example(targets, model(inputs, training=True))
            loss = tf.nn.compute_average_loss(values, global_batch_size=BATCH)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        tracker.update_state(values)
        return loss

    @tf.function
    def distributed_step(batch):
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    losses = [
        float(distributed_step(batch))
        for _ in range(epochs)
        for batch in strategy.experimental_distribute_dataset(data)
    ]
    return {"losses": losses, "mean": float(tracker.result())}


@pytest.mark.parametrize("case", tiers.cases(OPTIMIZERS, FAST))
def test_a_custom_loop_trains_as_on_one_device(case, trains_as_one_device):
    x, y = harness.regression_data(22)  # the last batch is short
    trains_as_one_device(
        lambda: harness.dense_model(OPTIMIZERS[case]()), lambda model: loop(model, x, y)
    )


@pytest.mark.slow
def test_an_optimizer_built_in_the_loop_trains_as_on_one_device(trains_as_one_device):
    x, y = harness.regression_data(22)

    def build():
        return harness.dense_model(optimizers.Adam(0.05))

    trains_as_one_device(build, lambda model: loop(model, x, y, build_lazily=True))


def test_reductions_and_gathers_see_every_replica(replicas):
    strategy = harness.strategy(replicas)

    @tf.function
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            me = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
            both = context.all_reduce("SUM", {"one": me, "rows": tf.fill([2, 3], me * me)})
            return both, context.all_reduce("MEAN", me)

        return strategy.run(replica)

    both, mean = step()
    ids = np.arange(1, replicas + 1)
    for value in strategy.experimental_local_results(both["one"]):
        assert float(value) == ids.sum()
    for value in strategy.experimental_local_results(both["rows"]):
        np.testing.assert_array_equal(value, np.full((2, 3), (ids**2).sum()))
    for value in strategy.experimental_local_results(mean):
        np.testing.assert_allclose(value, ids.mean(), rtol=1e-6)


class Counting(keras.layers.Layer):
    """Keeps what it sees, and declares how that becomes one value, or nothing."""

    def build(self, shape):
        self.sum, self.mean, self.last, self.seen = (
            self.add_weight(shape=(), trainable=False, initializer="zeros", **options)
            for options in (
                {"aggregation": "sum"}, {"aggregation": "mean"}, {}, {"dtype": "int32"},
            )
        )  # fmt: skip

    def call(self, x):
        self.sum.assign_add(keras.ops.sum(x))
        for variable in (self.mean, self.last):
            variable.assign(keras.ops.sum(x))
        self.seen.assign(self.seen + keras.ops.shape(x)[0] * keras.ops.cast(x[0], "int32"))
        return x


@harness.in_one_process
def test_what_replicas_write_becomes_one_value():
    with harness.scope(2):
        layer = Counting()
        layer.build((None,))
    strategy = layer.sum.value.distribute_strategy
    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors([1.0, 3.0]))
    tf.function(strategy.run)(layer, args=(batch,))
    for variable, expected in ((layer.sum, 4), (layer.mean, 2), (layer.last, 2), (layer.seen, 1)):
        assert [float(copy) for copy in harness.components(variable)] == [expected] * 2


class Fading(optimizers.SGD):
    """Has a number of its own, which Python changes in each update."""

    power = 1.0

    def apply(self, grads, trainable_variables=None):
        self.power /= 2
        return super().apply([grad * self.power for grad in grads], trainable_variables)


class OwnConstraint(keras.constraints.Constraint):
    def __init__(self):
        self.most = 0.5

    def __call__(self, weight):
        self.most /= 1.1
        return keras.ops.clip(weight, -self.most, self.most)


def falling():
    rates = iter([0.5, 0.25, 0.125, 0.0625])
    return optimizers.SGD(lambda: next(rates))


# What Python does in an update: an optimizer, and what the loop changes in it after each step.
IN_PYTHON = {
    "nothing": (lambda: sgd(clipnorm=0.3), lambda optimizer: None),
    "an apply of one's own": (lambda: Fading(0.1), lambda optimizer: None),
    "a rate that is a function": (falling, lambda optimizer: None),
    "a rate that is a built-in method": (
        lambda: optimizers.SGD(iter([0.5, 0.25, 0.125, 0.0625]).__next__),
        lambda optimizer: None,
    ),
    "a setting": (
        lambda: optimizers.SGD(0.1, clipnorm=0.3),
        lambda optimizer: setattr(optimizer, "clipnorm", optimizer.clipnorm / 2),
    ),
    "a constraint": (sgd, lambda optimizer: None),
}


@pytest.mark.parametrize("case", IN_PYTHON)
def test_python_in_an_eager_update_runs_each_time(case, trains_as_one_device):
    make, change = IN_PYTHON[case]
    x, y = harness.regression_data(16)

    def build():
        constraint = OwnConstraint() if case == "a constraint" else None
        model = keras.Sequential([keras.Input([x.shape[1]])])
        model.add(keras.layers.Dense(1, kernel_constraint=constraint))
        model.compile(make())
        return model

    def use(model):
        strategy, optimizer = model.distribute_strategy, model.optimizer

        def step(batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(batch[0]) - batch[1]) ** 2) / BATCH
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat(2)
        for batch in strategy.experimental_distribute_dataset(data):
            strategy.run(step, args=(batch,))
            change(optimizer)

    trains_as_one_device(build, use)


X, Y = harness.regression_data(14)


def guide(optimizer):
    """The model, optimizer, metrics and loss of Keras' guide to loops of one's own."""
    own = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, use_bias=False),
            layers.BatchNormalization(),
            layers.Dropout(0.3, seed=3),
            layers.Dense(1),
        ]
    )
    optimizer = OPTIMIZERS[optimizer]()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.build(own.trainable_variables)
    return own, optimizer, [keras.metrics.MeanSquaredError(), keras.metrics.Sum()]


def guides_loop(kind="Adam", graph=True):
    """Returns what runs that loop, in a scope or beside it: it returns the variables, and logs."""

    def loop(parts, seen):
        model, optimizer, metrics = parts
        loss_object = keras.losses.MeanSquaredError()

        def step(x, y):
            with tf.GradientTape() as tape:
                predictions = model(x, training=True)
                loss = loss_object(y, predictions)
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_weights)
            optimizer.apply(gradients, model.trainable_weights)
            metrics[0].update_state(y, predictions)
            metrics[1].update_state(loss)
            return loss

        step = tf.function(step) if graph else step
        for k in [0, 7, 0, 7]:
            seen.append(float(step(tf.constant(X[k : k + 7]), tf.constant(Y[k : k + 7]))))
        seen += [float(metric.result()) for metric in metrics]

    def run(scope, is_inside):
        harness.start_over()
        seen = []
        with scope:
            parts = guide(kind)
            if is_inside:
                loop(parts, seen)
        if not is_inside:
            loop(parts, seen)
        model, optimizer, _ = parts
        variables = [*model.variables, *optimizer.variables]
        if not isinstance(scope, contextlib.nullcontext):
            for variable in variables:
                copies = {each.tobytes() for each in harness.components(variable)}
                alike = len(copies) == 1 or harness.is_accumulator(variable)
                assert alike or harness.is_parted(variable), variable.path
        return [harness.global_value(each) for each in variables], seen

    return run


@pytest.mark.parametrize("where", tiers.first_of("outside", "in the scope"))
@pytest.mark.parametrize(
    ("kind", "graph"),
    tiers.first_of(
        ("global_clipnorm", True), ("Adam", False), ("accumulation", True), ("a loss scale", True)
    ),
)
def test_a_loop_that_knows_no_replicas_trains_as_on_one_device(kind, graph, where, replicas):
    run = guides_loop(kind, graph)
    expected = harness.once(lambda: run(contextlib.nullcontext(), True))
    found = run(harness.scope(replicas), where != "outside")
    harness.assert_close(found, expected, harness.WEIGHT_TOLERANCE)


@pytest.mark.parametrize(
    "options",
    tiers.first_of(
        {"shard": "optimizer"},
        {"shard": "gradients"},
        {"compression": tfdp.compression.Int8(smallest=1)},
        {"synchronization": tfdp.synchronization.LocalSGD(3)},
    ),
    ids=lambda options: "-".join(map(str, options)),
)
def test_such_a_loop_sends_nothing_and_rounds_nothing(options, replicas):
    run = guides_loop()
    expected = harness.once(lambda: run(contextlib.nullcontext(), True))
    found = run(harness.strategy(replicas, **options).scope(), True)
    harness.assert_close(found, expected, harness.WEIGHT_TOLERANCE)
