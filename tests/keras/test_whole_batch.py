"""What compares the examples of a batch, with `tfdp.whole_batch`, which loops of one's own need."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

import tfdp

X, Y = harness.regression_data(14)
WEIGHTS = np.linspace(0.5, 2.0, 14).astype("float32")


def spread(y, outputs):
    """Of all of the batch's errors: no mean over examples."""
    y, everyone = tfdp.whole_batch((y, outputs))
    return tf.math.reduce_std(everyone - y) + tf.sqrt(tf.reduce_mean(tf.square(everyone)))


def errors(y, outputs):
    """One for each example of the whole batch."""
    y, outputs = tfdp.whole_batch((y, outputs))
    return tf.square(outputs - y)[:, 0] * tf.math.reduce_std(outputs)


class Centred(layers.Layer):
    """Takes the batch's mean away, and punishes a spread."""

    def call(self, x):
        everyone = tfdp.whole_batch(x)
        self.add_loss(0.1 * tf.math.reduce_std(everyone))
        return x - tf.reduce_mean(everyone, axis=0)


def everywhere(**options):
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4, "tanh"), Centred(), layers.Dense(1)]
    )
    optimizer = optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, spread, metrics=[errors, spread], **options)
    return model


def fitted(model, **options):
    # The last batch is of two examples: a spread of one has no gradient.
    return harness.fit_arrays(model, X, Y, batch_size=6, epochs=2, **options)


def used(model):
    return {
        "fit": fitted(model),
        "evaluate": model.evaluate(X, Y, batch_size=6, verbose=0, return_dict=True),
        "predict": model.predict(X, batch_size=6, verbose=0),
    }


OPTIONS = {
    "as it comes": {},
    "several steps at once": {"steps_per_execution": 2},
    "eagerly": {"run_eagerly": True},
    "compiled": {"jit_compile": True},
}


@pytest.mark.telling
@pytest.mark.parametrize(
    "options",
    [pytest.param(n, marks=pytest.mark.exhaustive) if OPTIONS[n] else n for n in OPTIONS],
)
def test_losses_layers_and_metrics_see_all_examples(options, trains_as_one_device):
    trains_as_one_device(lambda: everywhere(**OPTIONS[options]), used)


class Gathering(layers.Layer):
    """Replicas take turns around an `all_gather`, and share the layer's list of losses."""

    def call(self, x):
        everyone, context = x, tf.distribute.get_replica_context()
        if context is not None and context.strategy.extended._num_replicas_in_sync > 1:
            everyone = context.all_gather(x, axis=0)
        self.add_loss(tf.math.reduce_std(everyone))
        return x


def test_losses_that_layers_add_are_the_replicas_own(trains_as_one_device):
    def build():
        model = keras.Sequential([keras.Input((5,)), layers.Dense(2), Gathering(), Gathering()])
        model.compile(optimizers.SGD(0.1), "mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, X, X[:, :2], batch_size=6))


class Summed(keras.losses.Loss):
    """A sum over the whole batch's values."""

    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, y, outputs):
        return errors(y, outputs)


def test_values_of_all_examples_are_weighted_and_summed_once(trains_as_one_device):
    def build():
        metrics = [keras.metrics.MeanMetricWrapper(errors)]
        slow = keras.optimizers.SGD(
            0.005
        )  # by a larger rate sums diverge, and each rounding with it
        return harness.dense_model(slow, loss=Summed(), metrics=(), weighted_metrics=metrics)

    trains_as_one_device(build, lambda model: fitted(model, sample_weight=WEIGHTS))


@pytest.mark.exhaustive("test_values_of_all_examples_are_weighted_and_summed_once")
def test_values_of_all_examples_are_averaged_over_those_that_a_mask_leaves_in(
    trains_as_one_device,
):
    def errors(y, outputs):
        y, outputs = tfdp.whole_batch((y, outputs))
        return tf.reduce_mean((y[:, None] - outputs) ** 2, axis=-1)

    def build():
        steps = [layers.Reshape([5, 1]), layers.Masking(), layers.Dense(2)]
        model = keras.Sequential([keras.Input((5,)), *steps])
        model.compile(keras.optimizers.SGD(0.1), errors)
        return model

    def fit(model):
        x, y = harness.regression_data()
        x[::3, 1:4] = 0.0  # steps that the mask leaves out
        return harness.fit_arrays(model, x, y)

    trains_as_one_device(build, fit)


class All(layers.Layer):
    """Gives rows of the whole batch."""

    def call(self, x):
        return 2.0 * tfdp.whole_batch(x)


class OwnStep(keras.Model):
    """Differentiates a sum over the whole batch, and clips by hand."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((5,)), layers.Dense(3, "tanh")])
        self.all = All()
        self.noise = layers.Dropout(0.4, seed=4)

    def loss_of(self, codes, views):
        scores = codes @ tf.transpose(self.noise(self.all(views), training=True))
        own = tf.reduce_sum(tf.reduce_logsumexp(scores, axis=1))
        return own + tf.reduce_sum(self.all(codes) ** 2)

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self.encoder(x), self.encoder(0.8 * x))
        variables = self.encoder.trainable_variables
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.5)
        self.optimizer.apply(gradients, variables)
        indices = tfdp.whole_batch({"rows": tf.cast(x[:, 0] > 0, tf.uint8), "none": None})
        return {"norm": norm, "positive": tf.reduce_sum(tf.cast(indices["rows"], tf.float32))}


def test_a_step_of_ones_own_sees_all_examples(trains_as_one_device):
    def build():
        model = OwnStep()
        model.compile(optimizers.SGD(0.1))
        return model

    trains_as_one_device(build, fitted)


@pytest.mark.exhaustive("test_losses_layers_and_metrics_see_all_examples")
@harness.in_one_process
def test_a_loop_of_ones_own_sees_all_examples(replicas):
    def trained(replicas):
        model = harness.build_in_scope(lambda: harness.dense_model(optimizers.SGD(0.1)), replicas)
        strategy = model.distribute_strategy if replicas else tf.distribute.get_strategy()

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = spread(y, model(x)) / strategy.num_replicas_in_sync
            variables = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, variables), variables)

        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
        for batch in strategy.experimental_distribute_dataset(batches):
            tf.function(strategy.run)(step, args=batch)
        return harness.weights(model)

    for ours, one in zip(trained(replicas), trained(None), strict=True):
        np.testing.assert_allclose(ours, one, atol=1e-6)


def test_on_one_device_it_is_the_tensor_itself():
    x = tf.ones([3, 2])
    assert tfdp.whole_batch(x) is x


@harness.in_one_process
def test_what_has_no_rows_is_refused_in_a_loop_of_ones_own():
    with pytest.raises(ValueError, match="received a scalar"):
        harness.strategy(2).run(tfdp.whole_batch, args=(tf.constant(1.0),))


@harness.in_one_process
def test_in_a_branch_of_a_loop_of_ones_own_it_says_where_to_call_it():
    strategy = harness.strategy(2)

    def replica(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tfdp.whole_batch(x), lambda: x)

    with pytest.raises(RuntimeError, match=r"outside of `tf\.cond`.* Call it before"):
        tf.function(lambda: strategy.run(replica, args=(tf.ones([2, 3]),)))()
    whole = strategy.partitioned(
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tfdp.whole_batch(x) + 1.0, lambda: x)
    )
    np.testing.assert_array_equal(whole(tf.ones([3, 2])), 2 * np.ones([3, 2]))


def views(y, outputs):
    return tf.reduce_mean(tfdp.whole_batch(tf.concat([outputs, outputs], axis=0)))


class Adding(keras.metrics.Metric):
    """Adds what all examples have together."""

    def __init__(self):
        super().__init__()
        self.total = self.add_variable((), "zeros")

    def update_state(self, y, outputs, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tfdp.whole_batch(outputs)))

    def result(self):
        return self.total


@pytest.mark.exhaustive("test_losses_layers_and_metrics_see_all_examples")
def test_rows_that_are_not_the_examples_and_sums_of_a_metric_are_one_devices(trains_as_one_device):
    trains_as_one_device(lambda: harness.dense_model(loss=views, metrics=[Adding()]), fitted)
