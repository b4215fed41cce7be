"""Steps as Keras' examples write them: adversaries, penalties on input gradients, contrasts."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops, optimizers

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


class FromDrawnNoise(WithGradientPenalty):
    """Noise is as long as the batch: the layers that see it have rows of examples, too."""

    def train_step(self, data):
        noise, real = data
        size = tf.shape(real)[0]
        drawn = noise + 0.0 * keras.random.normal([size, 5], seed=3)
        ones = tf.ones([size, 1])
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(drawn))
            real = self.critic(real)
            both = ops.concatenate([ones - fake, ones + real], axis=0)
            loss = tf.reduce_mean(ops.softplus(both)) + tf.nn.l2_loss(fake) / 100.0
        variables = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(loss, variables), variables)
        variables = self.generator.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(ops.softplus(self.critic(self.generator(drawn))))
        self.generator_optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Contrast(keras.Model):
    """Each example against those of the whole batch, which an `all_gather` brings."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((5,)), layers.Dense(3)])

    def train_step(self, data):
        x, _ = data
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            ours = tf.math.l2_normalize(self.encoder(x), axis=1)
            views = tf.math.l2_normalize(self.encoder(0.8 * x), axis=1)
            everyone = context.all_gather(views, axis=0)
            alike = tf.reduce_sum(ours * views, axis=1)
            terms = tf.reduce_logsumexp(ours @ tf.transpose(everyone), axis=1) - alike
            loss = tf.reduce_mean(terms)
        variables = self.encoder.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.5)
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


class Adversarial(keras.Model):
    """Trains on inputs that were moved along the sign of their gradient."""

    def __init__(self):
        super().__init__()
        self.layer = keras.Sequential([keras.Input((5,)), layers.Dense(3, "tanh"), layers.Dense(1)])

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(x, y, self(x))
        moved = x + 0.1 * tf.sign(tape.gradient(loss, x)) + 0.01 * tape_of_mean(self, x, y)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(moved) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


def tape_of_mean(model, x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_mean(tf.square(model(x) - y))
    return tape.gradient(loss, x) * 8.0


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
    "noise as long as the batch": (FromDrawnNoise, REAL),
    "a contrast over the batch": (Contrast, Y),
    "adversarial inputs": (Adversarial, Y),
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


class Scaled(Adversarial):
    """A loss scale, or several optimizers in one."""

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


@pytest.mark.exhaustive(
    "keras/test_fixed_shapes.py::test_a_model_is_built_for_the_batch_and_not_for_a_share"
)
def test_static_shapes_train_as_on_one_device(trains_as_one_device):
    """Batches whose size is declared, and noise of their shape."""

    class Static(FromDrawnNoise):
        def train_step(self, data):
            noise, real = data
            with tf.GradientTape() as tape:
                drawn = noise + 0.0 * keras.random.normal(tf.shape(noise), seed=3)
                still = 0.0 * tf.random.normal(tf.shape(noise))
                moved = self.generator(still) + self.generator(drawn)
                loss = tf.reduce_mean(self.critic(moved)) - tf.reduce_mean(self.critic(real))
                loss += 0.1 * tf.reduce_sum(self.critic(real)) / 12.0
            variables = self.critic.trainable_variables
            self.critic_optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    def use(model):
        data = tf.data.Dataset.from_tensor_slices((X, REAL)).batch(6, drop_remainder=True)
        return model.fit(data, epochs=2, verbose=0).history

    trains_as_one_device(lambda: compiled(Static()), use)


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
