"""Programs that draw numbers: for examples, for the batch, and in an order of states."""

import keras
import tensorflow as tf
from partition.training import WIDTH, descend, normal, program, rows, weight


@program
def mixed_examples():
    w, draws = weight(WIDTH, 2), keras.random.SeedGenerator(3)

    def step(x, y):
        n = tf.shape(x)[0]
        share = keras.random.uniform((n, 1), seed=draws)
        order = keras.random.shuffle(tf.range(n), seed=draws)
        x = share * x + (1 - share) * tf.gather(x, order)
        y = share * y + (1 - share) * tf.gather(y, order)
        return descend(lambda: tf.reduce_mean(tf.square(x @ w - y)), w), order

    return step, rows(WIDTH, 2)


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
def chosen_actions():
    """A policy's gradient: log probabilities of what was done, weighted by centered returns."""
    w, value_of = weight(WIDTH, 3), weight(WIDTH, 1)

    def step(x, actions, returns):
        def loss():
            chances = tf.nn.log_softmax(x @ w)
            places = tf.stack([tf.range(tf.shape(x)[0]), actions], 1)
            chosen = tf.gather_nd(chances, places)
            value = (x @ value_of)[:, 0]
            gain = tf.stop_gradient(returns - value)
            gain = (gain - tf.reduce_mean(gain)) / (tf.math.reduce_std(gain) + 1e-3)
            ratio = tf.exp(chosen - tf.stop_gradient(chosen) + 0.1 * gain)
            clipped = tf.minimum(ratio * gain, tf.clip_by_value(ratio, 0.8, 1.2) * gain)
            again = tf.gather(chances, actions, batch_dims=1)
            entropy = -tf.reduce_sum(tf.exp(chances) * chances, 1)
            return tf.reduce_mean(
                tf.square(returns - value) - clipped - 0.1 * entropy - 0.1 * gain * again
            )

        return descend(loss, w, value_of)

    def batch(generator, length):
        actions = generator.integers(0, 3, length).astype("int32")
        return normal(generator, length, WIDTH), actions, normal(generator, length)

    return step, batch


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
