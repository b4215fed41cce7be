"""Weights that are cut are whole where a layer computes with them, and no longer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

import tfdp
from tfdp.strategy.xla import mesh_sharding

LAYERS, WIDTH, TOKENS, WORDS = 12, 256, 16, 512


def transformer(count):
    inputs = keras.Input([TOKENS], dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(count):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, WIDTH // 4)(y, y)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "relu")(y))
    return keras.Model(inputs, layers.Dense(WORDS)(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [2, pytest.param(LAYERS, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_a_device_has_its_part_of_all_and_two_layers(on_devices, count):
    strategy = on_devices(8, shard="parameters")
    with strategy.scope():
        model = transformer(count)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = tf.TensorSpec([8, TOKENS], tf.int32)
    needed = strategy.compile_ahead(model, (batch, batch)).memory_bytes
    weights = 4 * model.count_params()
    of_a_layer = 4 * 12 * WIDTH**2
    # For each token what 20 layers of the width give, and scores of attention, before and after.
    activations = 4 * TOKENS * (count * (20 * WIDTH + 2 * 4 * TOKENS) + 4 * WORDS)
    parts = 4 * weights / 8  # weights, gradients, and two moments
    assert needed < parts + 2 * of_a_layer + activations


def perceptron():
    sizes = [layers.Dense(32, "tanh") for _ in range(3)]
    return keras.Sequential([keras.Input([16]), *sizes, layers.Dense(1)])


class Tied(keras.layers.Layer):
    """A table of words that gives their probabilities as well."""

    def build(self, _):
        self.table = self.add_weight(shape=[48, 16], name="table")

    def call(self, words):
        x = tf.reduce_mean(tf.gather(self.table, words), 1)
        return tf.linalg.matmul(tf.tanh(x), self.table, transpose_b=True)


def tied():
    return keras.Sequential([keras.Input([5], dtype="int32"), Tied()])


def recurrent():
    first = [keras.Input([5], dtype="int32"), layers.Embedding(48, 16, mask_zero=True)]
    return keras.Sequential([*first, layers.LSTM(16), layers.Dense(48)])


def unrolled():
    first = [keras.Input([5], dtype="int32"), layers.Embedding(48, 16)]
    return keras.Sequential([*first, layers.GRU(16, unroll=True), layers.Dense(48)])


def of_images():
    first = [keras.Input([5], dtype="int32"), layers.Embedding(48, 64), layers.Reshape([5, 8, 8])]
    last = [layers.Conv2D(16, 3, padding="same", name="convolved"), layers.Flatten()]
    return keras.Sequential([*first, *last, layers.Dense(48)])


def regularized():
    first = [keras.Input([5], dtype="int32"), layers.Embedding(48, 16), layers.Flatten()]
    return keras.Sequential([*first, layers.Dense(48, kernel_regularizer="l2")])


OPTIMIZERS = {
    "clipped": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "lamb": lambda: tfdp.optimizers.LAMB(0.01),
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


def trained(build, optimizer, strategy=None):
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    words, labels = rng.integers(1, 48, [64, 5]), rng.integers(0, 48, [64])

    def make():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(OPTIMIZERS[optimizer](), loss)
        return model

    if strategy is None:
        model = make()
    else:
        with strategy.scope():
            model = make()
    model.fit(words, labels, batch_size=16, shuffle=False, verbose=0)
    return model


CASES = [
    *((tied, "clipped"), (recurrent, "lamb"), (unrolled, "clipped"), (of_images, "clipped")),
    *((regularized, "accumulated"), (recurrent, "accumulated")),
]


@pytest.mark.parametrize(
    ("build", "optimizer"),
    tiers.cases(CASES, [(recurrent, "lamb"), (unrolled, "clipped"), (of_images, "clipped")]),
)
def test_weights_are_those_of_one_device(on_devices, build, optimizer, monkeypatch):
    monkeypatch.setattr(mesh_sharding, "SMALLEST_SHARD", 64)
    strategy = on_devices(8, shard="parameters")
    model = trained(build, optimizer, strategy)
    one = trained(build, optimizer)
    for weight, expected in zip(model.weights, one.weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5, rtol=0)
    named = strategy.explain(model).gathered_at_start
    # A convolution's kernel, and those of a cell that is used five times.
    expected = {of_images: {"convolved"}, unrolled: {"gru_cell"}}.get(build, set())
    assert {name.split("/")[-2] for name in named} == expected


def test_each_layer_gathers_its_weight_forward_and_backward(on_devices, monkeypatch):
    monkeypatch.setattr(mesh_sharding, "SMALLEST_SHARD", 64)
    strategy = on_devices(8, shard="parameters")
    with strategy.scope():
        model = perceptron()
        model.compile("adam", "mse")
    batch = tf.TensorSpec([16, 16]), tf.TensorSpec([16, 1])
    gathered = strategy.compile_ahead(model, batch).collectives["all-gather"]
    assert gathered == 2 * 3 - 1  # nothing needs the gradient of the inputs
