"""What steps write into layers', losses' and metrics' variables is what one device writes."""

import inspect

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops

pytestmark = pytest.mark.slow

X, Y = harness.regression_data(14)


class Writes(layers.Layer):
    """Passes its inputs on, and lets `write` do something with a variable and them."""

    def __init__(self, write, **options):
        super().__init__()
        self.write, self.options = write, options

    def build(self, shape):
        options = {"shape": (), "initializer": "ones", **self.options}
        self.state = self.add_weight(trainable=False, name="state", **options)

    def call(self, x):
        self.write(self.state, x)
        return x


def fit(model):
    return model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history


def over_replicas(value):
    context = tf.distribute.get_replica_context()  # None while Keras builds the layer in the scope
    return value if context is None else context.all_reduce("SUM", value)


DECLARED = {
    "sum, assign_add": ("sum", lambda v, x: v.assign_add(ops.sum(x))),
    "sum, assign_sub": ("sum", lambda v, x: v.assign_sub(ops.sum(x * x))),
    "sum, assign of its own and more": ("sum", lambda v, x: v.assign(ops.sum(x) + v)),
    "sum, assign": ("sum", lambda v, x: v.assign(ops.sum(x))),
    "sum, in a function": (
        "sum",
        lambda v, x: tf.function(lambda more: v.assign_add(more))(ops.sum(x)),
    ),
    "sum, a count of batches": ("sum", lambda v, x: v.assign_add(1.0)),
    "mean, assign": ("mean", lambda v, x: v.assign(ops.mean(x))),
    "mean, moving average": ("mean", lambda v, x: v.assign(0.9 * v + 0.1 * ops.mean(x))),
    "mean, assign_add": ("mean", lambda v, x: v.assign_add(ops.mean(x))),
    "the same on all": ("only_first_replica", lambda v, x: v.assign_add(2.0)),
    "a moving average of a sum": (
        "only_first_replica",
        lambda v, x: v.assign(0.9 * v + 0.1 * over_replicas(ops.sum(x))),
    ),
}


def moved(v, x):
    return 0.1 * (ops.sum(x) - v)


def written_in_a_branch(v, more):
    tf.cond(ops.sum(more) > 0.0, lambda: [v.assign_add(more), 1.0][1], lambda: 1.0)


# A sum that is computed from its own value.
FROM_ITS_OWN_VALUE = {
    "assign_add": lambda v, x: v.assign_add(moved(v, x)),
    "assign": lambda v, x: v.assign(0.9 * v + ops.sum(x)),
    "in a function": lambda v, x: v.assign_add(tf.function(lambda: moved(v, x))()),
    "in a branch": lambda v, x: v.assign_add(
        tf.cond(ops.sum(x) > 0.0, lambda: moved(v, x), lambda: ops.sum(x) * tf.ones(2))
    ),
    "of some entries": lambda v, x: v.assign_add(moved(tf.gather(v.value, [1, 0]), x)),
    "written in a function": lambda v, x: tf.function(v.assign_add)(moved(v, x)),
    "written in a branch": lambda v, x: written_in_a_branch(v, moved(v, x)),
}

UNDECLARED = {
    "a maximum": lambda v, x: v.assign(ops.maximum(v, ops.max(x))),
    "a count of examples": lambda v, x: v.assign(v + ops.cast(ops.shape(x)[0], "float32")),
    "a part": lambda v, x: v[:1].assign(x[:1, 0]),
}


class OfTensorFlow(Writes):
    """Has a variable of TensorFlow's own."""

    def build(self, shape):
        self.state = tf.Variable(1.0, trainable=False)


def of_its_own_value():
    return [Writes(write, aggregation="sum", shape=(2,)) for write in FROM_ITS_OWN_VALUE.values()]


def undeclared():
    return [
        *(Writes(write, shape=(2,)) for write in UNDECLARED.values()),
        Writes(UNDECLARED["a part"], shape=(2,), aggregation="mean"),
        Writes(lambda v, x: v.assign_add(ops.shape(x)[0]), dtype="int32"),
        OfTensorFlow(lambda v, x: v.assign_add(0.5 * v + tf.reduce_sum(x))),
    ]


def declared():
    return [Writes(write, aggregation=declared) for declared, write in DECLARED.values()]


LAYERS = [declared, of_its_own_value, undeclared]


def fit_and_read(model):
    states = (getattr(layer, "state", None) for layer in model.layers)
    return fit(model), [harness.components(state)[0] for state in states if state is not None]


@pytest.mark.telling
@pytest.mark.parametrize("eagerly", tiers.first_of(False, True), ids=["graph", "eager"])
@pytest.mark.parametrize("make", LAYERS)
def test_what_layers_write_is_one_devices(make, eagerly, trains_as_one_device):
    def build():
        model = keras.Sequential([keras.Input((5,)), *make(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=eagerly)
        return model

    trains_as_one_device(build, fit_and_read)


class Following(layers.Layer):
    """Moves a weight towards the batch's maximum, which it declares to be trainable."""

    def build(self, shape):
        self.largest = self.add_weight(name="largest", shape=(), initializer="ones")

    def call(self, x):
        self.largest.assign(0.9 * self.largest + 0.1 * ops.max(x))
        return x / self.largest


class FromItsMean(keras.losses.Loss):
    """The error where it is above its moving mean, which it keeps itself."""

    def __init__(self):
        super().__init__()
        self.mean = keras.Variable(0.0, trainable=False, name="errors_mean")

    def call(self, y_true, y_pred):
        errors = ops.mean(ops.square(y_true - y_pred), axis=-1)
        self.mean.assign(0.9 * self.mean + 0.1 * ops.max(errors))
        return ops.maximum(errors - self.mean, 0.0)


@pytest.mark.parametrize("kind", tiers.first_of("a trainable weight", "of a loss"))
def test_what_is_written_elsewhere_is_one_devices(kind, trains_as_one_device):
    def build():
        follows = [Following()] if kind == "a trainable weight" else []
        model = keras.Sequential([keras.Input((5,)), *follows, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse" if follows else FromItsMean())
        return model

    def fit_and_read_loss(model):
        mean = getattr(model.loss, "mean", None)
        return fit(model), None if mean is None else harness.components(mean)[0]

    trains_as_one_device(build, fit_and_read_loss)


class Metric(keras.metrics.Metric):
    """Lets `write` do something with its one state and the errors."""

    def __init__(self, write, name="mine", **options):
        super().__init__(name=name)
        self.write = write
        self.state = self.add_variable((), "zeros", name="state", **options)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.write(self.state, ops.abs(y_true - y_pred))

    def result(self):
        return ops.convert_to_tensor(self.state)


METRICS = {
    "adds": ({}, lambda v, e: v.assign_add(ops.sum(e))),
    "assigns its own and more": ({}, lambda v, e: v.assign(ops.sum(e) + v)),
    "sets to zero and adds": ({}, lambda v, e: (v.assign(0.0), v.assign_add(ops.sum(e)))),
    "assigns a mean": ({"aggregation": "mean"}, lambda v, e: v.assign(ops.mean(e))),
    "a moving mean": (
        {"aggregation": "mean"},
        lambda v, e: v.assign(0.5 * v + 0.5 * ops.mean(e)),
    ),
    "a maximum": ({}, lambda v, e: v.assign(ops.maximum(v, ops.max(e)))),
    "a mean that declares nothing": ({}, lambda v, e: v.assign(ops.mean(e))),
    "a moving average of a sum": ({}, lambda v, e: v.assign(0.9 * v + ops.mean(e))),
    "a constant": ({}, lambda v, e: v.assign(3.0)),
}


def test_metrics_of_the_users_own_are_one_devices(trains_as_one_device):
    def build():
        made = [Metric(w, f"m{n}", **o) for n, (o, w) in enumerate(METRICS.values())]
        model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=made)
        return model

    trains_as_one_device(build, fit)


def keras_metrics():
    """Every metric of Keras with a state of its own: the others are `Mean`s of a function."""
    classes = {name: kind for name, kind in vars(keras.metrics).items() if inspect.isclass(kind)}
    left_out = (keras.metrics.Mean, keras.metrics.Sum)
    needed = {
        "MeanIoU": {"num_classes": 2},
        "OneHotMeanIoU": {"num_classes": 2},
        "BinaryIoU": {},
        "IoU": {"num_classes": 2, "target_class_ids": [0]},
        "OneHotIoU": {"num_classes": 2, "target_class_ids": [0]},
        "MeanRelativeError": {"normalizer": [1.0]},
        "SensitivityAtSpecificity": {"specificity": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5},
        "PrecisionAtRecall": {"recall": 0.5},
        "RecallAtPrecision": {"precision": 0.5},
    }
    return [
        kind(name=name, **needed.get(name, {}))
        for name, kind in classes.items()
        if not issubclass(kind, left_out) and kind is not keras.metrics.Metric
    ]


@pytest.mark.exhaustive("test_metrics_of_the_users_own_are_one_devices")
def test_every_metric_of_keras_is_one_devices(trains_as_one_device):
    labels = (np.arange(14) % 2).astype("float32")[:, None]

    def build():
        model = keras.Sequential([keras.Input((5,)), layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=keras_metrics())
        return model

    def evaluate(model):
        return model.evaluate(X, labels, batch_size=4, verbose=0, return_dict=True)

    trains_as_one_device(build, evaluate, seen_tolerance=1e-4)
