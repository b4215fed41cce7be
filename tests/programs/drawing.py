"""Programs that draw numbers: for examples, for the batch, and in an order of states."""

import keras
import tensorflow as tf
from programs.library import WIDTH, descend, program, rows, weight


@program
def drawn_codes():
    """A variational autoencoder, with numbers of the batch's shape."""
    encoder, decoder = weight(WIDTH, 4), weight(2, WIDTH)
    draws = tf.random.Generator.from_seed(3)
    seeds = keras.random.SeedGenerator(4)

    def step(x):
        def loss():
            mean, deviation = tf.split(x @ encoder, 2, axis=1)
            code = mean + tf.exp(deviation) * draws.normal(tf.shape(mean))
            code *= tf.cast(keras.random.binomial(tf.shape(mean), 1, 0.8, seed=seeds), tf.float32)
            code += tf.random.stateless_normal(tf.shape(mean), seed=[1, 2])
            apart = tf.reduce_sum(tf.square(code @ decoder - x), -1)
            divergence = tf.reduce_sum(tf.exp(2 * deviation) + mean**2 - 2 * deviation, -1)
            return tf.reduce_mean(apart + 0.5 * divergence)

        return descend(loss, encoder, decoder, rate=0.02)

    return step, rows(WIDTH)


@program
def draws_from_hidden_states():
    """Seeded operations of `tf.random`, each of which goes on from step to step."""
    tf.random.set_seed(1)
    w = weight(WIDTH, 2)

    def step(x):
        noisy = tf.nn.dropout(x, 0.3, seed=2) + tf.random.normal(tf.shape(x), seed=3)
        noisy += tf.random.uniform([WIDTH], seed=4)
        order = tf.random.shuffle(tf.range(4), seed=5)
        drawn = tf.random.categorical(x @ w, 2, seed=6)
        return descend(lambda: tf.reduce_mean(tf.square(noisy @ w)), w), order, drawn

    return step, rows(WIDTH)
