"""What no program of TPUs can have is refused by name, before anything is compiled."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.errors import GradientError, PartitionError

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


def strings(x):
    return tf.strings.length(tf.strings.as_string(x))


def printing(x):
    tf.print(x)
    return x


def hidden_state(x):
    return x + tf.random.normal([8])


def within_a_loop(x):
    for _ in tf.range(3):
        x += tf.random.uniform([8])
    return x


def selection(x):
    return tf.reduce_sum(tf.boolean_mask(x, x > 0))


def unique(x):
    return tf.reduce_sum(tf.unique(x)[0])


def lookup(x):
    return table().lookup(tf.cast(x, tf.int32))


@pytest.mark.parametrize(
    "function, named, fix",
    [
        (numpy_function, "PyFunc", "input pipeline"),
        (py_function, "EagerPyFunc", "input pipeline"),
        (strings, "AsString", "input pipeline"),
        (printing, "StringFormat", "input pipeline"),
        (hidden_state, "RandomStandardNormal", "SeedGenerator"),
        (within_a_loop, "RandomUniform", "SeedGenerator"),
        (selection, "Where", "Keep the size fixed"),
        (unique, "Unique", "Keep the size fixed"),
        (lookup, "lookup table", "input pipeline"),
    ],
)
def test_it_names_the_operation_the_line_and_the_fix(on_devices, function, named, fix):
    with pytest.raises(PartitionError) as caught:
        on_devices(2).partitioned(function)(tf.ones([8]))
    said = str(caught.value)
    assert named in said
    assert fix in said
    if function is not lookup:
        assert re.search(rf"test_refusals.py:\d+, in {function.__name__}", said)


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


@pytest.mark.parametrize("make", [tf.constant, tf.ragged.constant])
def test_what_is_not_dense_numbers_is_no_argument(on_devices, make):
    with pytest.raises(TypeError, match="dense tensors of numbers"):
        on_devices(2).partitioned(lambda x: x)(make([["a"], ["b"]]))


def test_what_is_not_dense_is_told_how_to_become_so(on_devices):
    step = on_devices(2).partitioned(lambda x: x)
    with pytest.raises(TypeError, match=r"to_tensor\("):
        step(tf.ragged.constant([[1.0], [2.0, 3.0]]))
    with pytest.raises(TypeError, match=r"tf\.sparse\.to_dense"):
        step(tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]]))


def test_a_text_among_the_results_is_named(on_devices):
    with pytest.raises(PartitionError, match=r"returns a text, .*epoch"):
        on_devices(2).partitioned(lambda x: (x, {"name": "epoch"}))(tf.ones([4]))


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


def test_replica_functions_are_refused_with_the_way_to_go(on_devices):
    with pytest.raises(NotImplementedError, match=r"@strategy\.partitioned"):
        on_devices(2).run(lambda: 1)


def test_a_model_that_runs_eagerly_is_refused(on_devices):
    with on_devices(2).scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly"):
        model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)


@pytest.mark.parametrize("options, said", [({"shard": "all"}, "shard"), ({"devices": []}, "JAX")])
def test_options_out_of_their_range_are_refused(options, said):
    pytest.importorskip("jax")
    import tfdp

    with pytest.raises(ValueError, match=said):
        tfdp.TPUStrategy(**options)
