"""Metrics that are no means: their states add up, never their results."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import metrics


def labels(examples):
    x, y = harness.regression_data(examples)
    return x, (y > 0).astype("float32")


def classifier(chosen, **compile_options):
    def build():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile(
            keras.optimizers.SGD(0.3),
            loss="binary_crossentropy",
            metrics=[make() for make in chosen],
            **compile_options,
        )
        return model

    return build


class LargestError(metrics.Metric):
    """A user's metric whose state is a sum of powers, and whose result is far from a mean."""

    def __init__(self, name="largest_error", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.abs(y_true - y_pred) ** 8))

    def result(self):
        return self.total ** (1 / 8)


def largest(y_true, y_pred):
    return keras.ops.max(keras.ops.abs(y_true - y_pred))


CHOSEN = [
    lambda: metrics.AUC(num_thresholds=20, name="auc"),
    lambda: metrics.Precision(name="precision"),
    lambda: metrics.F1Score(threshold=0.5, average="micro", name="f1"),
    lambda: metrics.RootMeanSquaredError(name="rmse"),
    lambda: metrics.R2Score(name="r2"),
    LargestError,
    lambda: metrics.MeanMetricWrapper(largest),
]


def fit_and_evaluate(model):
    x, y = labels(21)
    batch_logs = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batch_logs.append(
            {name: float(value) for name, value in logs.items()}
        )
    )
    history = harness.fit_arrays(model, x, y, batch_size=8, callbacks=[record])
    return {
        "batch logs": batch_logs,
        "history": history,
        "evaluate": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
    }


@pytest.mark.telling
def test_logs_of_batches_and_epochs_are_one_devices(trains_as_one_device):
    outcome, _ = trains_as_one_device(classifier(CHOSEN), fit_and_evaluate)
    auc = [logs["auc"] for logs in outcome.seen["batch logs"]]
    assert len(set(auc)) > 1, "The metric never changed; the comparison says nothing."


@pytest.mark.exhaustive("test_logs_of_batches_and_epochs_are_one_devices")
@pytest.mark.parametrize("steps", [2, 3])
def test_they_are_so_with_several_steps_an_execution(steps, trains_as_one_device):
    build = classifier(CHOSEN, steps_per_execution=steps)
    trains_as_one_device(build, fit_and_evaluate)


@pytest.mark.exhaustive("test_logs_of_batches_and_epochs_are_one_devices")
def test_uneven_batches_give_one_devices_logs(trains_as_one_device):
    x, y = labels(17)
    use = harness.fit_datasets(lambda: harness.batches_of([3, 8, 1, 5], x, y), then=["evaluate"])
    trains_as_one_device(classifier(CHOSEN), use)


def test_an_auc_is_that_of_all_examples(replicas):
    """An independent oracle, so that a fault shared by both sides would show."""
    from sklearn.metrics import roc_auc_score

    x, y = labels(40)
    build = classifier([lambda: metrics.AUC(num_thresholds=4001, name="auc")])
    model = harness.build_in_scope(build, replicas)
    logs = model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)
    scores = model.predict(x, verbose=0)
    assert np.std(scores) > 0.01
    np.testing.assert_allclose(logs["auc"], roc_auc_score(y[:, 0], scores[:, 0]), atol=2e-3)


def test_a_metric_of_a_custom_loop_is_that_of_all_replicas(replicas):
    import tensorflow as tf

    strategy = harness.strategy(replicas)
    with strategy.scope():
        metric = metrics.Mean()

    values = np.arange(10, dtype="float32")
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(values))

    @tf.function
    def step(batch):
        strategy.run(metric.update_state, args=(batch,))

    for batch in data:
        step(batch)
    np.testing.assert_allclose(float(metric.result()), values.mean(), rtol=1e-6)


class Summing(keras.Model):
    """Trains on a sum, and tells it in every way; `also` is told, too."""

    def __init__(self, also=None):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.mean, self.sum = metrics.Mean(name="mean"), metrics.Sum(name="sum")
        self.also = also

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = (self(x) - y) ** 2
            loss = 0.5 * tf.reduce_sum(errors)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean.update_state(loss)
        self.mean.update_state(loss, sample_weight=0.5)
        self.mean.update_state(loss, sample_weight=tf.shape(x)[0])
        valid = tf.cast(y > 0.0, tf.int32)
        of_valid = tf.reduce_sum(errors * tf.cast(valid, tf.float32))
        number = tf.reduce_sum(valid)
        of_valid = tf.math.divide_no_nan(of_valid, tf.cast(number, tf.float32))
        self.mean.update_state(of_valid, sample_weight=number)
        self.sum.update_state(loss)
        told = {} if self.also is None else {"also": self.also(errors)}
        return {"loss": loss, "mean": self.mean.result(), "sum": self.sum.result(), **told}


def summing(also=None):
    def build():
        model = Summing(also)
        model.compile(keras.optimizers.SGD(0.01))
        return model

    return build


def fit_eleven(model):
    return harness.fit_arrays(model, *harness.regression_data(11), batch_size=6)


@pytest.mark.parametrize("also", tiers.first_of(tf.reduce_max, None), ids=["a maximum", "a sum"])
def test_a_number_of_the_batch_is_told_as_one(also, trains_as_one_device):
    trains_as_one_device(summing(also), fit_eleven)


class SumOfErrors(keras.Model):
    """Has Keras' own step train on a sum."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def call(self, x):
        return self.layer(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 0.5 * tf.reduce_sum((y_pred - y) ** 2)


class Total(keras.losses.Loss):
    """A loss whose own call returns a sum."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_sum((y_pred - y_true) ** 2)


def sum_of_errors():
    model = SumOfErrors()
    model.compile(keras.optimizers.SGD(0.01))
    return model


def total():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), Total())
    return model


@pytest.mark.parametrize("build", tiers.first_of(sum_of_errors, total))
def test_a_loss_that_is_a_sum_is_logged_as_one(build, trains_as_one_device):
    def fit_and_evaluate(model):
        history = fit_eleven(model)
        x, y = harness.regression_data(11)
        return history, model.evaluate(x, y, batch_size=6, verbose=0)

    trains_as_one_device(build, fit_and_evaluate)


@harness.in_one_process  # of the states of all replicas a process of a cluster holds its own
def test_a_reset_writes_the_state_of_all_replicas_and_asks_none_for_it(monkeypatch):
    strategy = harness.strategy(2)
    with strategy.scope():
        mean = metrics.Mean()
        mean.update_state([3.0, 5.0])
        shares = strategy.experimental_local_results(mean.total.value)
        with monkeypatch.context() as patched:
            patched.setattr(type(strategy.extended), "_reduce_to", None)
            mean.reset_state()
            mean.total.assign(4.0)
            assert [float(share) for share in shares] == [4.0, 0.0]  # their sum is the state
    assert float(mean.total.value) == 4.0


class Examples(metrics.Metric):
    """A user's metric that counts in whole numbers."""

    def __init__(self, name="examples", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_variable((), "zeros", dtype="int32", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(tf.shape(y_true)[0])

    def result(self):
        return self.count


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("runs", [lambda function: function, tf.function], ids=["eager", "graph"])
def test_whole_numbers_that_are_written_outside_of_replicas_are_whole(runs, replicas):
    with harness.strategy(replicas).scope():
        metric = Examples()
    update = runs(lambda rows: metric.update_state(rows, rows))
    for length in (5, 5, 3):
        update(tf.ones([length, 1]))
    assert int(metric.result()) == 13
    metric.count.assign(7)
    assert int(metric.result()) == 7
    metric.reset_state()
    assert int(metric.result()) == 0
