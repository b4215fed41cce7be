"""What replicas write into layers' and metrics' variables: as declared, an error or a warning."""

import inspect
import logging
import re

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


def model_with(write, metrics=(), **options):
    def build():
        layer = Writes(write, **options)
        model = keras.Sequential([keras.Input((5,)), layer, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[make() for make in metrics])
        return model

    return build


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


@pytest.mark.telling
def test_what_is_declared_gives_one_devices_state(trains_as_one_device):
    def build():
        written = [Writes(write, aggregation=declared) for declared, write in DECLARED.values()]
        model = keras.Sequential([keras.Input((5,)), *written, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    def fit_and_read(model):
        states = (harness.global_value(layer.state) for layer in model.layers[:-1])
        return fit(model), dict(zip(DECLARED, states, strict=True))

    trains_as_one_device(build, fit_and_read)


def test_what_is_declared_holds_in_eager_steps(replicas):
    states = []
    for count in (None, replicas):
        model = harness.build_in_scope(model_with(DECLARED["sum, assign_add"][1],
                                                  aggregation="sum"), count)  # fmt: skip
        model.run_eagerly = True
        fit(model)
        states.append(float(harness.global_value(model.layers[0].state)))
    np.testing.assert_allclose(states[1], states[0], rtol=1e-5)


def moved(v, x):
    return 0.1 * (ops.sum(x) - v)


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


def written_in_a_branch(v, more):
    tf.cond(ops.sum(more) > 0.0, lambda: [v.assign_add(more), 1.0][1], lambda: 1.0)


@pytest.mark.parametrize(
    "name",
    tiers.cases(FROM_ITS_OWN_VALUE, ("assign_add", "in a function")),
)
def test_a_sum_that_is_computed_from_its_own_value_is_refused(name):
    build = model_with(FROM_ITS_OWN_VALUE[name], aggregation="sum", shape=(2,))
    model = harness.build_in_scope(build, 2)
    with pytest.raises(ValueError, match=r"computed from the variable's own.*all_reduce"):
        fit(model)


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


def following():
    model = keras.Sequential([keras.Input((5,)), Following(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def from_its_mean():
    model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    model.compile("sgd", FromItsMean())
    return model


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (following, r"Following '\w+' writes '.*largest' from the batch"),
        (from_its_mean, r"The step writes 'errors_mean' from the batch"),
    ],
    ids=["a trainable weight", "of a loss"],
)
@harness.in_one_process
def test_what_is_written_elsewhere_is_told_too(build, said, caplog):
    with caplog.at_level(logging.WARNING, "tfdp"):
        fit(harness.build_in_scope(build, 2))
    assert re.search(said, caplog.text)


class Reusing(layers.Layer):
    """Holds a layer that the model holds, too."""

    def __init__(self, shared):
        super().__init__()
        self.shared = shared

    def call(self, x):
        return self.shared(x)


class Sharing(keras.Model):
    """Normalizes by a layer of its own, in a layer that it gives it to."""

    def __init__(self):
        super().__init__()
        self.normal = layers.BatchNormalization()
        self.block = Reusing(self.normal)
        self.last = layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.block(x))


@harness.in_one_process
def test_a_layer_of_keras_that_others_hold_is_no_matter_of_it(caplog):
    def build():
        model = Sharing()
        model.compile("sgd", "mse")
        return model

    with caplog.at_level(logging.WARNING, "tfdp"):
        fit(harness.build_in_scope(build, 2))
    assert "aggregation" not in caplog.text


@pytest.mark.parametrize(
    ("aggregation", "said"),
    [("mean", r"written whole.*slice_update"), ("none", r"the same on all replicas")],
)
def test_a_part_is_not_written_from_the_batch(aggregation, said):
    def write(variable, x):
        variable[:1].assign(x[:1, 0])

    build = model_with(write, aggregation=aggregation, shape=(2,))
    model = harness.build_in_scope(build, 2)
    with pytest.raises(ValueError, match=said):
        fit(model)


class WithPlainVariable(Writes):
    """Has a variable of TensorFlow's own, which nothing makes one value of."""

    def build(self, shape):
        self.state = tf.Variable(1.0, trainable=False)


@pytest.mark.parametrize("eagerly", tiers.first_of(False, True), ids=["graph", "eager"])
def test_a_variable_of_tensorflow_that_replicas_would_write_differently_is_refused(eagerly):
    def build(write):
        layer = WithPlainVariable(write)
        model = keras.Sequential([keras.Input((5,)), layer, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=eagerly)
        return model

    model = harness.build_in_scope(lambda: build(lambda v, x: v.assign_add(tf.reduce_sum(x))), 2)
    with pytest.raises(ValueError, match=r"the same on all replicas.*add_weight"):
        fit(model)
    model = harness.build_in_scope(lambda: build(lambda v, x: v.assign_add(0.5 * v)), 2)
    fit(model)
    first, *others = harness.components(model.layers[0].state)
    assert first > 1.0 and all(first == other for other in others)


@pytest.mark.parametrize("eagerly", tiers.first_of(True, False), ids=["eager", "graph"])
@harness.in_one_process
def test_what_is_not_declared_is_told_once(eagerly, caplog):
    said = {}
    writes = {
        "from the batch": lambda v, x: v.assign(ops.maximum(v, ops.max(x))),
        "the same on all": lambda v, x: v.assign_add(1.0),
    }
    for name, write in writes.items():
        model = harness.build_in_scope(model_with(write), 2)
        model.run_eagerly = eagerly
        with caplog.at_level(logging.WARNING, "tfdp"):
            caplog.clear()
            fit(model)
            fit(model)
            said[name] = [r.getMessage() for r in caplog.records if "aggregation" in r.message]
    assert len(said["from the batch"]) == 1
    assert "state' from the batch" in said["from the batch"][0]
    assert "aggregation='mean'" in said["from the batch"][0]
    assert said["the same on all"] == []


@harness.in_one_process
def test_keras_own_layers_are_no_matter_of_it(caplog):
    def build():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.BatchNormalization(),
                layers.SpectralNormalization(layers.Dense(3)),
                layers.Dropout(0.5),
                layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
        return model

    with caplog.at_level(logging.WARNING, "tfdp"):
        fit(harness.build_in_scope(build, 2))
    assert not [r for r in caplog.records if "aggregation" in r.message]


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
}


def test_metrics_that_add_or_declare_a_mean_are_one_devices(trains_as_one_device):
    made = [lambda n=n, o=o, w=w: Metric(w, f"m{n}", **o) for n, (o, w) in
            enumerate(METRICS.values())]  # fmt: skip
    trains_as_one_device(model_with(lambda v, x: None, made), fit)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda v, e: v.assign(ops.maximum(v, ops.max(e))), id="a maximum"),
        *(
            pytest.param(write, id=name, marks=pytest.mark.exhaustive)
            for name, write in {
                "a mean": lambda v, e: v.assign(ops.mean(e)),
                "a moving average": lambda v, e: v.assign(0.9 * v + ops.mean(e)),
                "a constant": lambda v, e: v.assign(3.0),
            }.items()
        ),
    ],
)
def test_a_metric_that_overwrites_a_state_that_is_summed_is_refused(write):
    model = harness.build_in_scope(model_with(lambda v, x: None, [lambda: Metric(write)]), 2)
    with pytest.raises(ValueError, match=r"must add to them, but '.*state' is written otherwise"):
        fit(model)


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


@pytest.mark.exhaustive("test_metrics_that_add_or_declare_a_mean_are_one_devices")
def test_no_metric_of_keras_is_refused(trains_as_one_device):
    labels = (np.arange(14) % 2).astype("float32")[:, None]

    def build():
        model = keras.Sequential([keras.Input((5,)), layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=keras_metrics())
        return model

    def evaluate(model):
        return model.evaluate(X, labels, batch_size=4, verbose=0, return_dict=True)

    trains_as_one_device(build, evaluate, seen_tolerance=1e-4)
