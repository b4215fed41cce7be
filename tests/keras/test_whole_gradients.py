"""Gradients are those of the whole batch, of whatever and whatever a step does with them."""

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops, optimizers

UNEVEN = [8, 3, 1, 5]
X, Y = harness.regression_data(sum(UNEVEN))


class Stepping(keras.Model):
    """A model whose `train_step` is a function that the test gives."""

    def __init__(self, step, features=5):
        super().__init__()
        self.step = step
        self.hidden = layers.Dense(3, activation="tanh")
        self.out = layers.Dense(1)
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")
        self.hidden.build((None, features))
        self.out.build((None, 3))
        self.built = True

    def call(self, x):
        return self.out(self.hidden(x)) * self.temperature

    def update(self, gradients):
        self.optimizer.apply(gradients, self.trainable_variables)

    def train_step(self, data):
        return self.step(self, *data) or {"done": tf.ones(())}


def trains(check, step, optimizer=lambda: optimizers.SGD(0.1), epochs=1, **tolerances):
    """Trains `step` on one device and on replicas, on batches that no number of them shares."""

    def build():
        model = Stepping(step)
        model.compile(optimizer(), loss="mse", jit_compile=False)
        return model

    def use(model):
        return model.fit(harness.batches_of(UNEVEN, X, Y), epochs=epochs, verbose=0).history

    return check(build, use, **tolerances)


def squares(model, x, y):
    """A value for each example."""
    return tf.reduce_sum(tf.square(y - model(x, training=True)), axis=-1)


def gradients_of(model, x, y, reduce=tf.reduce_mean):
    with tf.GradientTape() as tape:
        loss = reduce(squares(model, x, y))
    return tape.gradient(loss, model.trainable_variables)


# ---- what is done with gradients by hand ----


def by_global_norm(model, x, y):
    gradients, norm = tf.clip_by_global_norm(gradients_of(model, x, y), 0.2)
    model.update(gradients)
    return {"norm": norm}


def by_value(model, x, y):
    model.update([ops.clip(g, -0.05, 0.05) for g in gradients_of(model, x, y)])


def keras_loss_and_norms(model, x, y):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = [tf.clip_by_norm(g, 0.1) for g in tape.gradient(loss, model.trainable_variables)]
    model.update(gradients)
    return {"loss": loss}


def plain_function_within(model, x, y):
    model.update(tf.function(lambda x, y: gradients_of(model, x, y))(x, y))


def by_hand(model, x, y):
    """The gradient of a linear model's mean square, without a tape."""
    error = tf.matmul(x, model.hidden.kernel)[:, :1] - y
    slope = tf.reduce_mean(x[:, :, tf.newaxis] * error[:, :, tf.newaxis], axis=0)
    model.optimizer.apply_gradients([(tf.tile(slope, [1, 3]), model.hidden.kernel)])


def per_example_clipping(model, x, y):
    """As DP-SGD does: each example's gradient is clipped, then their mean is taken."""
    with tf.GradientTape() as tape:
        values = squares(model, x, y)
    clipped = []
    for rows in tape.jacobian(values, model.trainable_variables):
        flat = tf.reshape(rows, [tf.shape(rows)[0], tf.size(rows[0])])
        norms = tf.norm(flat, axis=1, keepdims=True) + 1e-6
        mean = tf.reduce_mean(flat * tf.minimum(1.0, 0.05 / norms), axis=0)
        clipped.append(tf.reshape(mean, rows.shape[1:]))
    model.update(clipped)


def keras_noise(model, x, y):
    gradients = gradients_of(model, x, y)
    model.update([g + 0.1 * keras.random.normal(g.shape) for g in gradients])


AFTERWARDS = [by_value, keras_loss_and_norms, by_hand, per_example_clipping, keras_noise]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(by_global_norm, marks=pytest.mark.telling),
        *tiers.cases(AFTERWARDS, [per_example_clipping]),
    ],
)
def test_what_is_done_with_gradients_means_what_it_means_on_one_device(step, trains_as_one_device):
    trains(trains_as_one_device, step)


def test_noise_of_tensorflow_on_gradients_is_one_devices(trains_as_one_device):
    def step(model, x, y):
        gradients = gradients_of(model, x, y)
        model.update([g + 0.1 * tf.random.normal(tf.shape(g)) for g in gradients])

    # Without a seed of its own a draw takes one from its place in the graph.
    trains(trains_as_one_device, step, one_device_eagerly=False)


# ---- what is differentiated ----


def weighted_terms(model, x, y):
    """A mean, a sum, and a penalty that has nothing of the batch in it, with factors."""
    values, penalty = squares(model, x, y), tf.reduce_sum(tf.square(model.hidden.kernel))
    return 0.5 * (tf.reduce_mean(values) + 0.1 * tf.reduce_sum(values) / 7.0) - 0.01 * penalty


def a_sum_over_a_size(model, x, y):
    return tf.nn.compute_average_loss(squares(model, x, y), global_batch_size=8)


def an_average_loss(model, x, y):
    return tf.nn.compute_average_loss(squares(model, x, y))


def stacked(model, x, y):
    values = squares(model, x, y)
    return tf.reduce_mean(tf.stack([tf.reduce_mean(values), 0.1 * tf.reduce_mean(values**2)]))


def a_learned_factor(model, x, y):
    mean = tf.reduce_mean(squares(model, x, y))
    return tf.exp(-model.temperature) * mean + model.temperature


TARGETS = (
    squares,
    weighted_terms,
    a_sum_over_a_size,
    an_average_loss,
    stacked,
    a_learned_factor,
)


def test_targets_of_any_kind_are_one_devices(trains_as_one_device):
    def step(model, x, y):
        found = []
        for of_batch in TARGETS:
            with tf.GradientTape() as tape:
                target = of_batch(model, x, y)
            found.append(tape.gradient(target, model.trainable_variables))
        model.update([tf.add_n(each) for each in zip(*found, strict=True)])

    trains(trains_as_one_device, step, lambda: optimizers.SGD(0.005))


# ---- gradients that wait until a window closes ----


def accumulating(**options):
    return lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2, **options)


def logged(model, x, y):
    gradients = gradients_of(model, x, y)
    model.update(gradients)
    return {"norm": tf.linalg.global_norm(gradients)}


WAITING = {"logged": logged, "in a function": plain_function_within, "clipped": by_global_norm}


@pytest.mark.parametrize("name", tiers.cases(WAITING, ["logged"]))
def test_accumulated_gradients_are_those_of_one_device(name, trains_as_one_device):
    trains(trains_as_one_device, WAITING[name], accumulating(global_clipnorm=0.2))
