"""Models that make examples: adversaries, autoencoders, flows, diffusion, energies."""

import math

import keras
import numpy as np
import tensorflow as tf
from foreign.data import (
    BATCH_SIZE,
    CLASSES,
    IMAGES,
    LABELS,
    POINTS,
)
from foreign.table import agrees
from keras import layers, ops

NOISE = 3
ONE_HOT = np.eye(CLASSES, dtype="float32")[LABELS]


def network(inputs, *widths, last=None):
    """A multilayer perceptron."""
    hidden = [layers.Dense(width, activation="tanh") for width in widths[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *hidden, layers.Dense(widths[-1], last)])


class GAN(keras.Model):
    """Two networks against each other, each with an optimizer and a metric of its own."""

    def __init__(self, condition):
        super().__init__()
        self.discriminator = network(2 + condition, 4, 1)
        self.generator = network(NOISE + condition, 4, 2)
        self.noise = keras.random.SeedGenerator(3)
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def latent(self, size, condition):
        return ops.concatenate(
            [keras.random.normal((size, NOISE), seed=self.noise), condition], axis=1
        )

    def train_step(self, data):
        real, condition = data
        size = ops.shape(real)[0]
        generated = self.generator(self.latent(size, condition))
        everything = ops.concatenate(
            [
                ops.concatenate([generated, condition], axis=1),
                ops.concatenate([real, condition], axis=1),
            ],
            axis=0,
        )
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(everything))
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(
            zip(gradients, self.discriminator.trainable_weights, strict=True)
        )
        latent = self.latent(size, condition)
        with tf.GradientTape() as tape:
            fake = ops.concatenate([self.generator(latent), condition], axis=1)
            g_loss = self.loss_fn(ops.zeros((size, 1)), self.discriminator(fake))
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(
            zip(gradients, self.generator.trainable_weights, strict=True)
        )
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


@agrees()
def conditional_gan(strategy):
    """Draws noise, and joins real and generated examples, with the class of each."""
    with strategy.scope():
        gan = GAN(CLASSES)
        adam = [keras.optimizers.Adam(1e-3) for _ in range(2)]
        gan.compile(*adam, keras.losses.BinaryCrossentropy(from_logits=True))
    return gan, gan.fit(POINTS, ONE_HOT, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class Sampling(layers.Layer):
    """Draws what an encoder's mean and logarithm of the variance describe."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


class VAE(keras.Model):
    """A variational autoencoder with a step of its own."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.total = keras.metrics.Mean(name="loss")
        self.kl = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total, self.kl]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            made = self.decoder(z)
            pixels = keras.losses.binary_crossentropy(data, made)
            reconstruction = ops.mean(ops.sum(pixels, axis=(1, 2)))
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            kl = ops.mean(ops.sum(kl, axis=1))
            loss = reconstruction + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(loss)
        self.kl.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}


@agrees()
def vae(strategy):
    """Encodes images as a distribution, whose divergence is a part of the loss."""
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(2, 3, strides=4, padding="same", activation="relu")(inputs)
        x = layers.Flatten()(x)
        mean, log_var = layers.Dense(2, name="mean")(x), layers.Dense(2, name="log_var")(x)
        encoder = keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])])
        codes = keras.Input((2,))
        x = layers.Reshape((4, 4, 2))(layers.Dense(32, activation="relu")(codes))
        x = layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")(x)
        model = VAE(encoder, keras.Model(codes, x))
        model.compile(keras.optimizers.Adam(1e-3))
    return model, model.fit(IMAGES, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class VectorQuantizer(layers.Layer):
    """The nearest of its codes for each vector; gradients go straight through."""

    def __init__(self, codes, width, beta=0.25):
        super().__init__()
        self.beta, self.count = beta, codes
        self.codes = self.add_weight(
            shape=(width, codes), initializer="random_uniform", name="codes"
        )

    def call(self, x):
        flat = ops.reshape(x, (-1, ops.shape(x)[-1]))
        distances = (
            ops.sum(flat**2, axis=1, keepdims=True)
            + ops.sum(self.codes**2, axis=0)
            - 2 * ops.matmul(flat, self.codes)
        )
        chosen = ops.one_hot(ops.argmin(distances, axis=1), self.count)
        quantized = ops.reshape(ops.matmul(chosen, ops.transpose(self.codes)), ops.shape(x))
        commitment = ops.mean((ops.stop_gradient(quantized) - x) ** 2)
        codebook = ops.mean((quantized - ops.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment + codebook)
        return x + ops.stop_gradient(quantized - x)


class VQVAETrainer(keras.Model):
    """Adds what the quantizer says to the error of what is decoded."""

    def __init__(self, vqvae, variance):
        super().__init__()
        self.vqvae, self.variance = vqvae, variance
        self.total = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.total]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            made = self.vqvae(x)
            loss = ops.mean((x - made) ** 2) / self.variance + sum(self.vqvae.losses)
        gradients = tape.gradient(loss, self.vqvae.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.vqvae.trainable_variables, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result(), "vq_loss": sum(self.vqvae.losses)}


@agrees()
def vq_vae(strategy):
    """Learns codes by gradients, a commitment in `add_loss`."""
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(2, 3, strides=4, padding="same")(inputs)
        x = VectorQuantizer(5, 2)(x)
        outputs = layers.Conv2DTranspose(1, 4, strides=4)(x)
        model = VQVAETrainer(keras.Model(inputs, outputs), float(IMAGES.var()))
        model.compile(keras.optimizers.Adam(1e-2))
    return model, model.fit(IMAGES, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class RealNVP(keras.Model):
    """Maps points to a normal distribution by couplings that can be inverted."""

    def __init__(self, couplings=2):
        super().__init__()
        self.masks = np.array([[0, 1], [1, 0]] * (couplings // 2), "float32")
        self.nets = [[network(2, 4, 2), network(2, 4, 2, last="tanh")] for _ in range(couplings)]
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x):
        log_det = 0.0
        for mask, (shift, scale) in zip(self.masks, self.nets, strict=True):
            kept = x * mask
            s, t = scale(kept) * (1 - mask), shift(kept) * (1 - mask)
            x = kept + (1 - mask) * (x * ops.exp(-s) - t * ops.exp(-s))
            log_det -= ops.sum(s, axis=1)
        return x, log_det

    def log_loss(self, x):
        y, log_det = self(x)
        log_likelihood = -0.5 * ops.sum(y**2, axis=1) - math.log(2 * math.pi) + log_det
        return -ops.mean(log_likelihood)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.log_loss(data)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


@agrees()
def real_nvp(strategy):
    """Estimates a density by a normalizing flow."""
    with strategy.scope():
        model = RealNVP()
        model.compile(keras.optimizers.Adam(1e-2))
    return model, model.fit(POINTS, batch_size=BATCH_SIZE, verbose=0)


class DDIM(keras.Model):
    """A diffusion model: learns the noise in images, and keeps an average of its network."""

    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network, self.ema_network = network(3, 6, 2), network(3, 6, 2)
        self.ema_network.set_weights(self.network.get_weights())
        self.seed_generator = keras.random.SeedGenerator(9)

    def train_step(self, data):
        images = self.normalizer(data, training=True)
        noises = keras.random.normal(ops.shape(images), seed=self.seed_generator)
        times = keras.random.uniform((ops.shape(images)[0], 1), seed=self.seed_generator)
        angles = 0.2 + times * 1.3
        signal_rates, noise_rates = ops.cos(angles), ops.sin(angles)
        noisy = signal_rates * images + noise_rates * noises
        with tf.GradientTape() as tape:
            predicted = self.network(ops.concatenate([noisy, noise_rates**2], axis=1))
            loss = self.loss(noises, predicted)
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        for weight, average in zip(self.network.weights, self.ema_network.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {"loss": loss}


@agrees()
def diffusion(strategy):
    """Removes noise of a random strength from each example; averages weights by hand."""
    with strategy.scope():
        model = DDIM()
        model.normalizer.adapt(POINTS)
        model.compile(
            keras.optimizers.AdamW(1e-2, weight_decay=1e-4), keras.losses.MeanAbsoluteError()
        )
    return model, model.fit(POINTS, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class Energy(keras.Model):
    """An energy model: low where examples are, high where a walk down its slopes ends."""

    def __init__(self):
        super().__init__()
        self.energy = network(2, 6, 1)
        self.seed_generator = keras.random.SeedGenerator(2)

    def walk(self, x, steps=2):
        for _ in range(steps):
            x = x + 0.1 * keras.random.normal(ops.shape(x), seed=self.seed_generator)
            with tf.GradientTape() as tape:
                tape.watch(x)
                energy = self.energy(x)
            x = x - 0.2 * ops.clip(tape.gradient(energy, x), -0.5, 0.5)
        return ops.stop_gradient(x)

    def train_step(self, real):
        fake = self.walk(keras.random.uniform(ops.shape(real), seed=self.seed_generator))
        with tf.GradientTape() as tape:
            down, up = self.energy(real), self.energy(fake)
            loss = ops.mean(down - up) + 0.1 * ops.mean(down**2 + up**2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss, "gap": ops.mean(up) - ops.mean(down)}


@agrees()
def energy_model(strategy):
    """Walks along gradients with respect to inputs inside of the step."""
    with strategy.scope():
        model = Energy()
        model.compile(keras.optimizers.Adam(1e-2, clipvalue=0.5))
    return model, model.fit(POINTS, batch_size=BATCH_SIZE, epochs=2, verbose=0)
