"""Weights and states of every dtype, on every path: one device's values, or an error by name."""

import functools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras.optimizers import SGD

import tfdp
from tfdp import compression
from tfdp.compression import ErrorFeedback
from tfdp.synchronization import Delayed, DiLoCo, Gossip, LocalSGD

pytestmark = [pytest.mark.slow, harness.in_one_process]

# How far apart weights may be, of the largest: sums in 16 bits are rounded by each replica.
WEIGHTS = {
    "float16": 4 * 2.0**-10,
    "bfloat16": 4 * 2.0**-7,
    "float32": 1e-5,
    "float64": 1e-5,  # as the losses, which are float32
    "complex64": 1e-5,
    "complex128": 1e-5,
}
STATES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "string"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]
START = np.array([1 + 1j, -2 + 0.5j, 0.5 - 1j, 3 - 2j])


def in_dtype(numbers, dtype):
    """Numbers as a tensor; of real dtypes they are the real parts."""
    return tf.constant(numbers if tf.as_dtype(dtype).is_complex else numbers.real, dtype)


class OfEveryDtype(keras.layers.Layer):
    """A weight and a state of each dtype; each weight has an output, and so a loss, of its own."""

    def __init__(self, weights=tuple(WEIGHTS), states=tuple(STATES)):
        super().__init__(autocast=False)
        self.of_weights, self.of_states = weights, states

    def build(self, shape):
        def variable(dtype, kind, initializer, **options):
            name = f"{kind}_{dtype}"
            return self.add_weight([4], initializer, dtype, name=name, **options)

        def start(shape, dtype):
            return in_dtype(START, dtype)

        self.own = [variable(dtype, "weight", start) for dtype in self.of_weights]
        self.states = [variable(d, "state", nothing, trainable=False) for d in self.of_states]

    def call(self, x):
        total = tf.reduce_sum(tf.cast(x, tf.float64), 0)
        for state in self.states:
            state.assign(later(state.value, total))
        return tf.concat([tf.cast(self.of_weight(x, weight), tf.float32) for weight in self.own], 1)

    @staticmethod
    def of_weight(x, weight):
        product = tf.cast(x, weight.dtype) * weight
        if product.dtype.is_complex:
            product = 0.3 * tf.math.real(product) ** 2 + tf.math.imag(product)
        return tf.reduce_sum(product, 1, keepdims=True)


def later(state, total):
    """What a state becomes with a batch; exact in every dtype."""
    if state.dtype == tf.bool:
        return tf.not_equal(state, total > 0)
    if state.dtype == tf.string:
        return tf.strings.join([state, tf.as_string(total, precision=2)], " ")
    if state.dtype.is_complex:
        return state + tf.cast(tf.complex(total, 2 * total), state.dtype)
    return state + tf.cast(4 * total, state.dtype)


def nothing(shape, dtype):
    return tf.fill(shape, "") if dtype == "string" else tf.zeros(shape, dtype)


class MetricOfEveryDtype(keras.metrics.Metric):
    """Keeps the targets' sum in each dtype."""

    def __init__(self, states=tuple(STATES)):
        super().__init__(name="of_every_dtype")
        self.states = [self.add_variable([], nothing, d, name=f"metric_{d}") for d in states]

    def reset_state(self):
        for state in self.states:
            state.assign(nothing([], state.dtype))

    def update_state(self, y_true, y_pred, sample_weight=None):
        total = tf.reduce_sum(tf.cast(y_true, tf.float64))
        for state in self.states:
            state.assign(later(state.value, total))

    def result(self):
        return tf.zeros([])


def batches():
    numbers = np.random.default_rng(0).integers(-2, 5, [2, 5, 4]) / 4
    return [(x.astype("float32"), 2 * x.sum(1, keepdims=True).astype("float32")) for x in numbers]


def dataset(batches):
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    return functools.reduce(tf.data.Dataset.concatenate, parts)


def built(*of):
    model = keras.Sequential([keras.Input((4,)), OfEveryDtype(*of)])
    model.compile(SGD(0.05, momentum=0.5), "mse", metrics=[] if of else [MetricOfEveryDtype()])
    return model


def values(model):
    of_metrics = [v for v in model.metrics_variables if "metric_" in v.path]  # not of the losses
    variables = [*model.variables, *model.optimizer.variables, *of_metrics]
    for variable in variables:
        is_own = variable.value.synchronization == tf.VariableSynchronization.ON_READ
        copies = [] if is_own or harness.is_parted(variable) else harness.components(variable)
        assert all((copy == copies[0]).all() for copy in copies), variable
    return {
        variable.path.rpartition("/")[2]: np.asarray(variable.numpy()) for variable in variables
    }


def fitted(build, folder, **options):
    strategy = harness.strategy(2, **options)
    with strategy.scope():
        model = build()
    model.fit(dataset(batches()), verbose=0, epochs=2)
    if options.get("synchronization"):
        strategy.synchronize(model)
    return model


def gone_on(build, folder):
    """Trained in two runs, of which the second goes on from the first one's checkpoint."""
    steps = []
    counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: steps.append(1))
    for epochs in (1, 2):
        harness.start_over()
        with harness.strategy(2).scope():
            model = build()
        saved = tfdp.callbacks.Checkpoint(folder, every_epochs=1)
        model.fit(dataset(batches()), verbose=0, epochs=epochs, callbacks=[saved, counting])
    assert len(steps) == 4
    return model


def measured(build, folder):
    """Trained while telemetry records its steps."""
    with harness.strategy(2).scope():
        model = build()
    telemetry = tfdp.callbacks.Telemetry(folder, sample_every=1, tensorboard=False)
    model.fit(dataset(batches()), verbose=0, epochs=2, callbacks=[telemetry])
    return model


def stepped(build, folder, by):
    """Trained by a loop of its own."""
    strategy = harness.strategy(2)
    with strategy.scope():
        model = build()

    def step(x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = tf.reduce_sum((outputs - y) ** 2) / (5 * outputs.shape[1])
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    step = by(strategy, step)
    for batch in 2 * batches():
        step(*map(tf.constant, batch))
    return model


def run(strategy, step):
    def shares(*batch):
        cut = [tf.split(each, [3, 2]) for each in batch]
        per_replica = [harness.per_replica(strategy, each) for each in cut]
        strategy.run(step, args=per_replica)

    return shares


def by_fit(**options):
    return functools.partial(fitted, **options)


FREE = {"smallest": 1, "exclude": []}
LOSSY = {
    "Int8": compression.Int8(**FREE),
    "Sign": ErrorFeedback(compression.Sign(**FREE)),
    "TopK": ErrorFeedback(compression.TopK(0.5, **FREE)),
    "RandomK": compression.RandomK(0.5, **FREE),
    "PowerSGD": compression.PowerSGD(1, **FREE),
    "BetweenHosts": compression.BetweenHosts(compression.Int8(**FREE)),
}
PATHS = {
    "fit": by_fit(),
    **{f"shard={shard}": by_fit(shard=shard) for shard in ("gradients", "optimizer", "parameters")},
    "LocalSGD": by_fit(synchronization=LocalSGD(1)),
    "DiLoCo": by_fit(synchronization=DiLoCo(1, lambda: SGD(1.0))),
    "Gossip": by_fit(synchronization=Gossip()),
    "Cast": by_fit(compression=compression.Cast("float16")),
    **{name: by_fit(compression=each) for name, each in LOSSY.items()},
    "checkpoint": gone_on,
    "telemetry": measured,
    "partitioned": functools.partial(stepped, by=lambda strategy, step: strategy.partitioned(step)),
    "run": functools.partial(stepped, by=run),
}
WERE_WRONG = {"LocalSGD", "Cast", "checkpoint"}
# Paths that do something of their own with what layers keep.
OF_STATES = {"fit", "shard=parameters", "Gossip", "checkpoint", "partitioned"}
# What is rounded on purpose: by 16 bits, or all that a compression takes.
ROUNDED = dict.fromkeys(LOSSY, ({"float32"}, np.inf)) | {"Cast": ({"float32", "float64"}, 2e-3)}


@functools.cache
def of_one_device():
    harness.start_over()
    model = built()
    model.run_eagerly = True
    model.fit(dataset(batches()), verbose=0, epochs=2)
    return values(model)


@pytest.mark.parametrize("path", tiers.cases(PATHS, WERE_WRONG))
def test_every_dtype_is_trained_as_on_one_device(path, tmp_path):
    expected = of_one_device()
    harness.start_over()
    build = built if path in OF_STATES else functools.partial(built, tuple(WEIGHTS), ())
    found = values(PATHS[path](build, tmp_path))
    kinds = ["weight"] + (["state"] if build is built else [])
    kinds += ["metric"] if build is built and path != "partitioned" else []
    assert found.keys() >= {name for name in expected if name.split("_")[0] in kinds}
    rounded, tolerance = ROUNDED.get(path, ((), 0.0))
    for name, actual in found.items():
        wanted = expected[name]
        assert actual.dtype == wanted.dtype, name
        dtype = tf.as_dtype(wanted.dtype).name
        if "weight" not in name:
            np.testing.assert_array_equal(actual, wanted, name)
            continue
        actual, wanted = actual.astype("complex128"), wanted.astype("complex128")
        allowed = tolerance if dtype in rounded else WEIGHTS[dtype]
        assert np.abs(actual - wanted).max() <= allowed * np.abs(START).max(), name


def single(dtype, optimizer):
    """A model with one weight."""
    keras_model = keras.Sequential([keras.Input((4,)), OfEveryDtype((dtype,), ())])
    keras_model.compile(optimizer, "mse")
    return keras_model


REFUSED = {
    **{
        f"{dtype}, MomentumCorrection": (
            lambda dtype=dtype: single(dtype, SGD(0.05)),
            {"compression": compression.MomentumCorrection(compression.TopK(0.5))},
            rf"must be of float32 to get the momentum .*{dtype}",
        )
        for dtype in WEIGHTS
        if dtype != "float32"
    },
    **{
        f"{dtype}, {optimizer.__name__}": (
            lambda dtype=dtype, optimizer=optimizer: single(dtype, optimizer(0.05)),
            {},
            rf"{optimizer.__name__} must be given real variables, but .*weight.* is of {dtype}",
        )
        for dtype in ("complex64", "complex128")
        for optimizer in (tfdp.optimizers.LAMB, tfdp.optimizers.LARS)
    },
}


@pytest.mark.parametrize("case", tiers.cases(REFUSED, {"complex64, LAMB"}))
def test_a_dtype_that_a_method_is_not_defined_for_is_refused(case):
    build, options, told = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=told):
        fitted(build, None, **options)


class InParts(OfEveryDtype):
    """The complex layer with its weight's real and imaginary parts as a real weight."""

    def build(self, shape):
        parts = tf.constant(np.stack([START.real, START.imag]), tf.float32)
        self.own = [self.add_weight([2, 4], lambda shape, dtype: parts, name="parts")]
        self.states = []

    @staticmethod
    def of_weight(x, weight):
        real, imaginary = x * weight[0], x * weight[1]
        return tf.reduce_sum(0.3 * real**2 + imaginary, 1, keepdims=True)


ROUNDS = {
    "LocalSGD": LocalSGD(3),
    "DiLoCo": DiLoCo(2),
    "DiLoCo, overlapping": DiLoCo(2, overlap=0.5),
    "Gossip": Gossip(),
    "Delayed": Delayed(),
}


@pytest.mark.parametrize("method", tiers.cases(ROUNDS, {"DiLoCo"}))
def test_complex_weights_train_by_themselves_as_their_parts_do(method):
    ends = []
    for layer in (OfEveryDtype(("complex64",), ()), InParts()):
        harness.start_over()
        strategy = harness.strategy(2, synchronization=ROUNDS[method])
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), type(layer)(layer.of_weights, ())])
            model.compile(SGD(0.05, momentum=0.5), "mse")
        model.fit(dataset(batches()), verbose=0, epochs=2)
        open_round = model.get_weights()[0]
        strategy.synchronize(model)
        ends.append((open_round, model.get_weights()[0], model.optimizer.variables[2].numpy()))
    for found, parts in zip(*ends, strict=True):
        np.testing.assert_allclose(found, parts[0] + 1j * parts[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("graph", tiers.first_of(True, False), ids=["in a graph", "eagerly"])
def test_what_replicas_write_by_themselves_becomes_one_value(graph):
    """Means of numbers that are no counts; of counts and flags the first replica's."""
    strategy = harness.strategy(3)
    states = tuple(state for state in STATES if state != "string")
    with strategy.scope():
        layer = OfEveryDtype((), states)
        layer.build((None, 4))
    share = 0.25 * np.arange(1, 5)

    def step():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        total = tf.constant(share) * tf.cast(1 + number, tf.float64)
        for state in layer.states:
            state.assign(later(state.value, total))

    (tf.function(strategy.run) if graph else strategy.run)(step)
    for state in layer.states:
        kind = np.dtype(state.value.dtype.as_numpy_dtype).kind
        first, mean = share, 2 * share
        expected = {"b": first > 0, "c": mean + 2j * mean}.get(
            kind, 4 * (first if kind in "iu" else mean)
        )
        for copy in harness.components(state):
            np.testing.assert_array_equal(copy.astype(expected.dtype), expected, state.path)


def test_texts_that_replicas_write_by_themselves_are_refused():
    strategy = harness.strategy(2)
    with strategy.scope():
        layer = OfEveryDtype((), ("string",))
        layer.build((None, 4))
    with pytest.raises(TypeError, match=r"must be numbers or booleans.*strategy\.partitioned"):
        tf.function(strategy.run)(lambda: layer.states[0].assign(["a"] * 4))


@pytest.mark.parametrize(("dtype", "told"), [("bool", "bool. Cast"), ("string", "string. Gather")])
def test_flags_and_texts_of_metrics_that_replicas_update_by_themselves_are_refused(dtype, told):
    strategy = harness.strategy(2)
    with strategy.scope():
        metric = MetricOfEveryDtype((dtype,))
    with pytest.raises(TypeError, match=f"must be numbers, but received a tensor of {told}"):
        tf.function(strategy.run)(lambda: metric.update_state(tf.ones([2]), None))
