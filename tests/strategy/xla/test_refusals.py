"""What no program of XLA can have is refused by name, before anything is compiled."""

import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.errors import GradientError, PartitionError, ScopeError

TABLE = []


def table():
    if not TABLE:
        pairs = tf.lookup.KeyValueTensorInitializer([1], [2])
        TABLE.append(tf.lookup.StaticHashTable(pairs, 0))
    return TABLE[0]


def numpy_function(x):
    return tf.numpy_function(lambda a: a, [x], tf.float32)


def py_function(x):
    return tf.py_function(lambda a: a, [x], tf.float32)


def strings(x, weight):
    return tf.strings.length(tf.strings.as_string(x * weight))


def printing(x):
    tf.print(x)
    return x


def hidden_state(x):
    return x + tf.random.normal([8])


def within_a_loop(x):
    for _ in tf.range(3):
        x += tf.random.uniform([8])
    return x


def selection(x, weight):
    return tf.reduce_sum(tf.boolean_mask(x, x * weight > 0))


def unique(x, weight):
    return tf.reduce_sum(tf.unique(x * weight)[0])


def lookup(x, weight):
    return table().lookup(tf.cast(x * weight, tf.int32))


@pytest.mark.parametrize(
    "function, named, fix",
    [
        (numpy_function, "PyFunc", "input pipeline"),
        (py_function, "EagerPyFunc", "input pipeline"),
        (strings, "AsString", "Return the numbers"),
        (printing, "StringFormat", "Leave `tf.print` out"),
        (hidden_state, "RandomStandardNormal", "SeedGenerator"),
        (within_a_loop, "RandomUniform", "SeedGenerator"),
        (selection, "Where", "Keep the size fixed"),
        (unique, "Unique", "Keep the size fixed"),
        (lookup, "lookup table", "input pipeline"),
    ],
)
def test_it_names_the_operation_the_line_and_the_fix(on_devices, function, named, fix):
    strategy, given = on_devices(2), {}
    if "weight" in inspect.signature(function).parameters:  # else the host would compute it
        with strategy.scope():
            weight = tf.Variable(2.0)
        given = {"weight": weight}
    with pytest.raises(PartitionError) as caught:
        strategy.partitioned(lambda x: function(x, **given))(tf.ones([8]))
    said = str(caught.value)
    assert named in said
    assert fix in said
    if function is not lookup:
        assert re.search(rf"test_refusals.py:\d+, in {function.__name__}", said)


def test_a_layer_of_keras_that_cannot_be_lowered_is_named(on_devices):
    with on_devices(2).scope():
        cropped = keras.layers.RandomCrop(2, 2, name="cropped")
        model = keras.Sequential([keras.Input([4, 4, 1]), cropped, keras.layers.Flatten()])
        model.compile("sgd", "mse")
    with pytest.raises(PartitionError, match=r"StridedSlice.*; \S+/cropped\S*\):.*`dataset\.map`"):
        model.fit(np.ones([4, 4, 4, 1]), np.ones([4, 4]), verbose=0)


def test_a_variable_from_outside_of_the_scope_is_named(on_devices):
    outside = tf.Variable(1.0, name="outside")
    with pytest.raises(PartitionError, match="'outside:0' was made outside"):
        on_devices(2).partitioned(lambda x: x * outside)(tf.ones([8]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.sort(x, axis=1),
        lambda x: tf.math.top_k(x, 2).values,
        lambda x: tf.argsort(x, direction="DESCENDING"),
        lambda x: tf.cast(tf.math.in_top_k(tf.argmax(x, 1), x, 2), tf.int32),
    ],
    ids=["sort", "top_k", "argsort", "in_top_k"],
)
def test_sizes_that_are_fixed_are_not_taken_for_open(on_devices, function):
    x = tf.constant(np.random.default_rng(0).normal(size=[8, 5]), tf.float32)
    np.testing.assert_array_equal(on_devices(4).partitioned(function)(x), function(x))


@pytest.mark.parametrize(
    "make, fix",
    [
        (lambda: tf.ragged.constant([[1], [2, 3]]), "x.to_tensor"),
        (lambda: tf.sparse.from_dense([[1, 0], [0, 1]]), "tf.sparse.to_dense"),
    ],
    ids=["ragged", "sparse"],
)
def test_what_is_not_dense_is_no_argument(on_devices, make, fix):
    with pytest.raises(TypeError, match=f"dense tensors.*{fix}"):
        on_devices(2).partitioned(lambda x: x)(make())


@pytest.mark.parametrize(
    "function, given, text",
    [
        (lambda x: (x, {"name": "epoch"}), tf.ones, "epoch"),
        (tf.strings.lower, lambda shape: tf.fill(shape, "A"), "StringLower"),
    ],
)
def test_a_text_among_the_results_is_named(on_devices, function, given, text):
    with pytest.raises(PartitionError, match=rf"returns a text, .*{text}"):
        on_devices(2).partitioned(function)(given([4]))


def test_a_tape_outside_is_told_to_move_into_the_program(on_devices):
    strategy = on_devices(2)
    with strategy.scope():
        weight, other = tf.Variable(3.0), tf.Variable(2.0)
    x = tf.ones([4])
    scaled = strategy.partitioned(lambda x: (tf.reduce_mean(x) * weight, tf.shape(x)[0]))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss, _ = scaled(x)
        elsewhere = other * other
    for source in (weight, x):
        with pytest.raises(GradientError, match="Move the tape"):
            tape.gradient(loss, source)
    assert float(tape.gradient(elsewhere, other)) == 4.0


def test_a_program_is_called_outside_of_graphs(on_devices):
    step = on_devices(2).partitioned(lambda x: x + 1)
    with pytest.raises(RuntimeError, match="must be called eagerly"):
        tf.function(lambda x: step(x))(tf.ones([4]))


def test_a_model_that_runs_eagerly_is_refused(on_devices):
    with on_devices(2).scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly"):
        model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)


def test_a_size_that_an_argument_decides_is_named(on_devices):
    step = on_devices(2).partitioned(lambda x, rows: tf.reshape(x, [rows, -1]))
    with pytest.raises(PartitionError, match=r"Reshape.*decides a size.*number of Python"):
        step(tf.ones([4, 2]), tf.constant(2))
    assert step(tf.ones([4, 2]), 2).shape == (2, 4)


def test_an_iterator_is_no_argument(on_devices):
    with pytest.raises(TypeError, match=r"next\(iterator\)"):
        on_devices(2).partitioned(next)(iter(tf.data.Dataset.range(3)))


def test_a_model_compiled_in_the_scope_must_be_built_there(on_devices):
    strategy = on_devices(2)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    with strategy.scope(), pytest.raises(ScopeError, match=r"'sequential.*would train on one"):
        model.compile("sgd", "mse")


def test_a_model_of_one_device_has_no_program_to_be_compiled_or_explained(on_devices):
    strategy = on_devices(2)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batch = tf.TensorSpec([4, 2]), tf.TensorSpec([4, 1])
    for ask in (lambda: strategy.compile_ahead(model, batch), lambda: strategy.explain(model)):
        with pytest.raises(ScopeError, match="was made outside it"):
            ask()


class Headed(keras.Model):
    """A model around a part that was made before."""

    def __init__(self, base):
        super().__init__()
        self.base, self.head = base, keras.layers.Dense(1)

    def call(self, x):
        return self.head(self.base(x))


def step_of_a_loop(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)


def headed(base):
    return keras.Sequential([base, keras.layers.Dense(1)])


TRAINING = {
    "fit": lambda model, x, y: model.fit(x, y, verbose=0),
    "train_on_batch": lambda model, x, y: model.train_on_batch(x, y),
    "loop": step_of_a_loop,
}


@pytest.mark.parametrize(
    ("head", "method"),
    tiers.first_of((headed, "fit"), (headed, "train_on_batch"), (Headed, "fit"), (headed, "loop")),
)
def test_a_model_made_outside_around_a_part_from_the_scope_is_refused(on_devices, head, method):
    with on_devices(2).scope():
        base = keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])
    before = base.get_weights()
    model = head(base)
    model.compile("sgd", "mse")
    x, y = np.ones([4, 2], "float32"), np.ones([4, 1], "float32")
    assert model.predict(x, verbose=0).shape == (4, 1)  # as on one device
    with pytest.raises(ScopeError, match=r"in one scope, but 'sgd'.*whole model"):
        TRAINING[method](model, x, y)
    for found, expected in zip(base.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("wraps", [False, True])
def test_an_optimizer_from_outside_of_the_scope_is_named(on_devices, wraps):
    optimizer = keras.optimizers.Adam(name="outside")
    with on_devices(2).scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        if wraps:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse")
    with pytest.raises(ScopeError, match=r"'outside',? .*was made outside"):
        model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"shard": "all"}, "shard"),
        *(({"devices": each}, r"JAX.*jax\.devices") for each in ([], 8, ["TPU:0", "TPU:1"])),
    ],
)
def test_options_out_of_their_range_are_refused(options, said):
    pytest.importorskip("jax")
    import tfdp

    with pytest.raises(ValueError, match=said):
        tfdp.XLAStrategy(**options)
