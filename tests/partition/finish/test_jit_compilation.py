"""What lies between a program's collectives is compiled, and means what it means on one device."""

import functools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import strategy
from programs.runners import assert_as_one_device, one_device, replicas

from tfdp.partition.finish import jit_compilation

# One device must draw by XLA, too. It cannot compile all of the others.
DRAWING = ("convolutions_and_dropout", "transformer")


def functions_of(partitioned):
    """The functions of a partitioned function's latest program, by their names."""
    return {each.signature.name: each for each in partitioned._latest.program.functions}


def is_compiled(function):
    return "_XlaMustCompile" in function.attr and function.attr["_XlaMustCompile"].b


def types_of(functions):
    return {node.op for function in functions for node in function.node_def}


def made_step():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5, seed=1)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    adam = keras.optimizers.Adam(0.1, clipnorm=0.5)
    adam.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        adam.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return model, step


def in_rounds(x):
    """A loop, and what is compiled before and after it."""
    scaled = tf.tanh(x) * 2.0 + tf.exp(-x) - tf.square(x)
    total = tf.while_loop(lambda at, _: at < 2, lambda at, y: (at + 1, y @ y), (0, scaled[:2, :2]))
    return tf.reduce_sum(tf.tanh(scaled) * tf.sqrt(tf.abs(x))) + tf.reduce_sum(total[1])


def test_a_compiled_program_is_explained_as_one_that_is_not():
    x = np.arange(12, dtype="float32").reshape(6, 2)
    compiled, plain = (
        strategy(2).partitioned(in_rounds, jit_compile=asked) for asked in (True, False)
    )
    assert compiled.explain(x) == plain.explain(x)
    compiled(x)
    assert any(map(is_compiled, functions_of(compiled).values()))


def test_a_step_is_compiled_between_its_collectives_and_trains_as_one_device():
    x = np.arange(20, dtype="float32").reshape(5, 4) / 10
    y = x.sum(axis=1, keepdims=True)
    harness.start_over()
    model, step = made_step()
    compiled = tf.function(step, jit_compile=True)
    losses = [float(compiled(x, y)) for _ in range(3)]
    weights = model.get_weights()
    harness.start_over()
    with strategy(3).scope():
        model, step = made_step()
    run = strategy(3).partitioned(step, jit_compile=True)
    np.testing.assert_allclose([float(run(x, y)) for _ in range(3)], losses, 1e-5)
    for found, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(found, expected, 0, 1e-5)
    inside = [each for each in functions_of(run).values() if is_compiled(each)]
    outside = [each for each in functions_of(run).values() if not is_compiled(each)]
    assert {"MatMul", "ReluGrad", "Sqrt"} <= types_of(inside)
    assert not {"MatMul", "ReluGrad", "Sqrt"} & types_of(outside)
    assert "StatefulPartitionedCall" in types_of(outside)  # the collectives
    assert any("Random" in each for each in types_of(inside))
    assert not any("Variable" in each for each in types_of(inside))


def test_what_xla_has_no_kernel_of_is_run_as_it_is():
    def step(x):
        y = tf.nn.softmax(tf.matmul(x, x, transpose_b=True) * 2 + 1)
        texts = tf.strings.as_string(tf.reduce_sum(y, 1), precision=3)
        again = tf.strings.to_number(texts) * tf.reduce_max(y, 1) / 2 + 1
        return again, tf.boolean_mask(again, again > 1.2) * 3 - tf.exp(again[0]), texts

    x = tf.constant([[0.1, 0.2], [0.4, 0.3], [0.9, 0.1], [0.3, 0.8]])
    run = strategy(2).partitioned(step, jit_compile=True)
    for found, expected in zip(run(x), tf.function(step)(x), strict=True):
        if found.dtype == tf.string:
            assert found.numpy().tolist() == expected.numpy().tolist()
        else:
            np.testing.assert_allclose(found, expected, 1e-5)


def test_what_is_compiled_needs_nothing_that_needs_it():
    def step(x):
        y = tf.exp(x) * 2 + 1 - tf.sqrt(x)
        for _ in range(3):
            texts = tf.strings.as_string(y)  # not compiled
            y = tf.exp(-tf.strings.to_number(texts)) + y * 2 - tf.sqrt(y)
        return y

    run = strategy(2).partitioned(step, jit_compile=True)
    x = tf.constant([0.5, 1.0, 2.0])
    np.testing.assert_allclose(run(x), step(x), 1e-4)
    assert sum(map(is_compiled, functions_of(run).values())) == 4


def test_a_program_of_few_operations_is_left_alone():
    run = strategy(2).partitioned(lambda x: x + 1, jit_compile=True)
    assert run(tf.constant([1.0, 2.0])).numpy().tolist() == [2.0, 3.0]
    assert not any(map(is_compiled, functions_of(run).values()))


def test_xla_s_kernels_are_known_by_the_dtypes_that_they_take():
    graph = tf.Graph()
    with graph.as_default():
        product = tf.matmul(tf.ones([1, 1]), tf.ones([1, 1])).op.node_def
        text = tf.strings.as_string(tf.ones([1])).op.node_def
        moved = tf.identity(tf.constant(["a"])).op.node_def
    empty = type("Program", (), {"functions": []})
    kernels = jit_compilation._Kernels("XLA_CPU_JIT", empty)
    assert kernels.has(product)
    assert not kernels.has(text)
    assert not kernels.has(moved)


@pytest.mark.parametrize(
    "name",
    tiers.first_of(
        "loss_scale_with_an_overflow",
        "batch_normalization",
        "convolutions_and_dropout",
        "counters_and_statistics",
        "lstm_of_unknown_length",
        "ragged_rows",
        "summands_in_branches_and_loops",
        "transformer",
    ),
)
def test_a_compiled_program_trains_as_one_device(name):
    expected = one_device(name, jit_compile=name in DRAWING or None)
    assert_as_one_device(replicas(name, 2, jit_compile=True), expected)


def dropout(shape, seed):
    kept = tf.nn.experimental.stateless_dropout(tf.ones(shape), 0.4, seed)
    return keras.random.dropout(kept, 0.2, seed=7)


def in_a_loop(shape, seed):
    def body(i, total):
        return i + 1, total + tf.random.stateless_normal(shape, seed + i)

    return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros(shape)))[1]


def in_a_branch(shape, seed):
    return tf.cond(
        tf.random.stateless_uniform([], seed) > 0.1,
        lambda: tf.random.stateless_normal(shape, seed),
        lambda: tf.zeros(shape),
    )


DRAWS = {
    "uniform": tf.random.stateless_uniform,
    "normal": tf.random.stateless_normal,
    "normal of doubles": functools.partial(tf.random.stateless_normal, dtype=tf.float64),
    "truncated": tf.random.stateless_truncated_normal,
    "integers": functools.partial(tf.random.stateless_uniform, minval=0, maxval=9, dtype=tf.int32),
    "the first version of normal": lambda shape, seed: tf.raw_ops.StatelessRandomNormal(
        shape=shape, seed=seed
    ),
    "Keras' normal": lambda shape, seed: keras.random.normal(shape, seed=7),
    "Keras' truncated": lambda shape, seed: keras.random.truncated_normal(shape, seed=7),
    "categories": lambda shape, seed: tf.random.stateless_categorical(
        tf.zeros([shape[0], 5]), 6, seed
    ),
    "shuffled": lambda shape, seed: keras.random.shuffle(tf.range(shape[0]), seed=7),
    "dropout": dropout,
    "in a loop": in_a_loop,
    "in a branch": in_a_branch,
}


# `make test` runs one for each kind of name that tells a draw, and one in a function.
OF_EACH_KIND = {"normal of doubles", "truncated", "categories", "shuffled", "in a loop"}


@pytest.mark.parametrize("name", tiers.cases(DRAWS, OF_EACH_KIND))
def test_draws_are_those_of_one_device_that_compiles(name):
    draw = DRAWS[name]
    seed = tf.Variable([5, -3])  # TensorFlow draws what is constant before XLA is asked

    def step(x):
        rows = tf.shape(x)[0]
        return [draw([rows, *sizes], seed) for sizes in ([], [19], [3, 7])]

    one = tf.function(step, jit_compile=True, autograph=False)
    many = strategy(3).partitioned(step, jit_compile=True)
    for x in (tf.range(7.0), tf.range(2.0)):  # of which one of three replicas has none
        for found, expected in zip(many(x), one(x), strict=True):
            np.testing.assert_allclose(found, expected, 1e-6, 1e-6)


def test_draws_of_a_generator_go_on_as_on_one_device_that_compiles():
    def runs(make):
        def step(x):
            shape = [tf.shape(x)[0], 18]
            parts = [generator.normal(shape), generator.uniform(shape)]
            return tf.stack([*parts, generator.truncated_normal(shape)], 1)

        generator = tf.random.Generator.from_seed(5)
        run = make(step)
        return [run(tf.ones([length, 2])) for length in (7, 7, 2)]

    expected = runs(lambda step: tf.function(step, jit_compile=True))
    with strategy(3).scope():
        found = runs(lambda step: strategy(3).partitioned(step, jit_compile=True))
    for one, many in zip(expected, found, strict=True):
        np.testing.assert_allclose(many, one, 1e-6, 1e-6)


def test_a_model_with_dropout_trains_as_one_device_that_compiles():
    def trained():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(24, "relu"), keras.layers.Dropout(0.5, seed=1)]
        layers += [keras.layers.GaussianNoise(0.3, seed=2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("sgd", "mse", jit_compile=True)
        x = np.arange(28, dtype="float32").reshape(7, 4) / 10
        model.fit(x, x.sum(axis=1, keepdims=True), batch_size=7, epochs=3, verbose=0)
        return model.get_weights()

    harness.start_over()
    weights = trained()
    harness.start_over()
    with strategy(3).scope():
        found = trained()
    for many, one in zip(found, weights, strict=True):
        np.testing.assert_allclose(many, one, 0, 1e-5)
