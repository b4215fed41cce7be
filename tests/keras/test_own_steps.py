"""Steps as Keras' examples write them: adversaries, optimizers in others, tapes in models.

What other steps do is in `tests/partition` and `tests/foreign`.
"""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, optimizers

UNEVEN = [8, 3, 1, 5]
X, Y = harness.regression_data(sum(UNEVEN))
REAL = np.random.default_rng(1).normal(2.0, 1.0, (len(X), 3)).astype("float32")


def critic():
    return keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(1)])


class WithGradientPenalty(keras.Model):
    """WGAN-GP: the critic's gradient with respect to images in between shall have norm 1."""

    def __init__(self):
        super().__init__()
        self.critic = critic()
        self.generator = keras.Sequential([keras.Input((5,)), layers.Dense(3)])

    def compile(self):
        super().compile()
        self.critic_optimizer = optimizers.Adam(0.02)
        self.generator_optimizer = optimizers.Adam(0.02)

    def penalty(self, real, fake):
        between = real + 0.3 * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.critic(between, training=True)
        slopes = tape.gradient(scores, [between])[0]
        norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=[1]))
        return tf.reduce_mean((norms - 1.0) ** 2)

    def train_step(self, data):
        noise, real = data
        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            cost = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
            loss = cost + 10.0 * self.penalty(real, fake)
        variables = self.critic.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.critic_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        with tf.GradientTape() as tape:
            cost = -tf.reduce_mean(self.critic(self.generator(noise, training=True)))
        variables = self.generator.trainable_variables
        gradients = tape.gradient(cost, variables)
        self.generator_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


class Tokens(keras.Model):
    """Sparse gradients of an embedding, clipped by hand."""

    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(7, 3)
        self.embedding.build((None, 5))

    def train_step(self, data):
        x, y = data
        tokens = tf.cast(tf.abs(x) * 2.0, tf.int32) % 7
        with tf.GradientTape() as tape:
            values = tf.reduce_sum(self.embedding(tokens), axis=[1, 2])
            loss = tf.reduce_mean(tf.square(values - y[:, 0]))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_weights), 0.3)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}


def compiled(model, optimizer=None):
    if isinstance(model, WithGradientPenalty):
        model.compile()
    else:
        model.compile(optimizer or optimizers.SGD(0.1), "mse", jit_compile=False)
    return model


PROGRAMS = {
    "WGAN-GP": (WithGradientPenalty, REAL),
    "sparse, clipped by hand": (Tokens, Y),
}


@pytest.mark.parametrize("name", tiers.cases(PROGRAMS, ["WGAN-GP"]))
def test_a_program_trains_as_on_one_device(name, trains_as_one_device):
    model, second = PROGRAMS[name]

    def use(trained):
        return trained.fit(harness.batches_of(UNEVEN, X, second), epochs=2, verbose=0).history

    trains_as_one_device(lambda: compiled(model()), use)


def scaled_step(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model.layer(x) - y))
        scaled = model.optimizer.scale_loss(loss)
    weights = model.trainable_weights
    model.optimizer.apply(tape.gradient(scaled, weights), weights)
    return {"loss": loss}


class Scaled(keras.Model):
    """A loss scale, or several optimizers in one."""

    def __init__(self):
        super().__init__()
        self.layer = keras.Sequential([keras.Input((5,)), layers.Dense(3, "tanh"), layers.Dense(1)])

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        return scaled_step(self, *data)


def several():
    chosen = optimizers.OptimizerMap(optimizers.SGD(0.1), {".*bias": optimizers.Adam(0.02)})
    return optimizers.MultiOptimizer(chosen)


def scaling(**options):
    inner = optimizers.SGD(0.1, global_clipnorm=0.3, **options)
    return optimizers.LossScaleOptimizer(inner, initial_scale=64.0)


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(several, marks=harness.needs_multi_optimizer),
        lambda: scaling(gradient_accumulation_steps=2),
        pytest.param(scaling, marks=pytest.mark.exhaustive),
    ],
    ids=["several in one", "a loss scale and accumulation", "a loss scale"],
)
def test_an_optimizer_around_others_trains_as_on_one_device(optimizer, trains_as_one_device):
    trains_as_one_device(
        lambda: compiled(Scaled(), optimizer()),
        lambda m: m.fit(harness.batches_of(UNEVEN, X, Y), epochs=2, verbose=0).history,
    )


@pytest.mark.parametrize("takes", tiers.first_of("slopes of inputs", "slopes of weights"))
def test_a_tape_inside_a_model_that_is_compiled(takes, trains_as_one_device):
    class Inside(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = layers.Dense(1, "tanh")
            self.layer.build((None, 5))
            self.built = True

        def call(self, x):
            source = x if takes == "slopes of inputs" else self.layer.bias
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = self.layer(x)
            slopes = tape.gradient(value, source)
            return value + 0.1 * tf.reduce_sum(slopes * tf.ones_like(x[:, :1]), 1, keepdims=True)

    def build():
        model = Inside()
        model.compile(optimizers.SGD(0.1), "mse", jit_compile=True)
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, X, Y))
