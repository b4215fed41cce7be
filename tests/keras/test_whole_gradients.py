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


def sign(model, x, y):
    model.update([0.1 * tf.sign(g) for g in gradients_of(model, x, y)])


def keras_loss_and_norms(model, x, y):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = [tf.clip_by_norm(g, 0.1) for g in tape.gradient(loss, model.trainable_variables)]
    model.update(gradients)
    return {"loss": loss}


def sharpness_aware(model, x, y):
    gradients = gradients_of(model, x, y)
    scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
    for variable, g in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_add(g * scale)
    at_the_top = gradients_of(model, x, y)
    for variable, g in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_sub(g * scale)
    model.update(at_the_top)


def two_tapes(model, x, y):
    one = gradients_of(model, x, y)
    other = gradients_of(model, x[:, ::-1], y, tf.reduce_sum)
    model.update([a + 0.1 * b for a, b in zip(one, other, strict=True)])


def persistent(model, x, y):
    with tf.GradientTape(persistent=True) as tape:
        values = squares(model, x, y)
        mean, total = tf.reduce_mean(values), tf.reduce_sum(values)
    first = tape.gradient(mean, model.trainable_variables)
    second = tape.gradient(total, model.trainable_variables)
    model.update([a + 0.05 * tf.sign(b) for a, b in zip(first, second, strict=True)])


def second_order(model, x, y):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(squares(model, x, y))
        gradients = inner.gradient(loss, model.trainable_variables)
        penalty = tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients])
        objective = loss + 0.1 * penalty
    model.update(outer.gradient(objective, model.trainable_variables))


def a_step_ahead(model, x, y):
    """As in meta-learning: the gradient at weights that are themselves a step along a gradient."""
    kernel, bias = model.out.kernel, model.out.bias
    features = model.hidden(x)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(tf.square(y - features @ kernel - bias))
        kernel_slope, bias_slope = inner.gradient(loss, [kernel, bias])
        ahead = features @ (kernel - 0.5 * kernel_slope) + bias - 0.5 * bias_slope
        loss = tf.reduce_mean(tf.square(y - ahead))
    gradients = outer.gradient(loss, [kernel, bias])
    model.optimizer.apply_gradients(zip(gradients, [kernel, bias], strict=True))


def function_within(model, x, y):
    @tf.function
    def gradients(x, y):
        return gradients_of(model, x, y)

    model.update([ops.clip(g, -0.05, 0.05) for g in gradients(x, y)])


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


def vectorized(model, x, y):
    def one(example):
        with tf.GradientTape() as tape:
            value = squares(model, example[0][tf.newaxis], example[1][tf.newaxis])[0]
        return tape.gradient(value, model.trainable_variables)

    rows = tf.vectorized_map(one, (x, y))
    model.update([tf.reduce_mean(tf.clip_by_value(r, -0.1, 0.1), axis=0) for r in rows])


def keras_noise(model, x, y):
    gradients = gradients_of(model, x, y)
    model.update([g + 0.1 * keras.random.normal(g.shape) for g in gradients])


def changed_by_examples(model, x, y):
    model.update([g * tf.reduce_mean(y) for g in gradients_of(model, x, y)])


AFTERWARDS = {
    f.__name__: f
    for f in (
        by_global_norm,
        by_value,
        sign,
        keras_loss_and_norms,
        sharpness_aware,
        two_tapes,
        persistent,
        second_order,
        a_step_ahead,
        function_within,
        by_hand,
        per_example_clipping,
        vectorized,
        keras_noise,
        changed_by_examples,
    )
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("by_global_norm", marks=pytest.mark.telling),
        *tiers.cases([n for n in AFTERWARDS if n != "by_global_norm"], ["per_example_clipping"]),
    ],
)
def test_what_is_done_with_gradients_means_what_it_means_on_one_device(name, trains_as_one_device):
    trains(trains_as_one_device, AFTERWARDS[name])


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


def a_sum_over_their_number(model, x, y):
    values = squares(model, x, y)
    return tf.reduce_sum(values) / tf.cast(tf.shape(values)[0], tf.float32)


def an_average_loss(model, x, y):
    return tf.nn.compute_average_loss(squares(model, x, y))


def stacked(model, x, y):
    values = squares(model, x, y)
    return tf.reduce_mean(tf.stack([tf.reduce_mean(values), 0.1 * tf.reduce_mean(values**2)]))


def a_learned_factor(model, x, y):
    mean = tf.reduce_mean(squares(model, x, y))
    return tf.exp(-model.temperature) * mean + model.temperature


def two_means(model, x, y):
    values = squares(model, x, y)
    return [tf.reduce_mean(values), tf.reduce_mean(values**2)]


def root(model, x, y):
    return tf.sqrt(tf.reduce_mean(squares(model, x, y)))


def masked_by_hand(model, x, y):
    mask = tf.cast(y[:, 0] > 0, tf.float32)
    return tf.reduce_sum(mask * squares(model, x, y)) / tf.reduce_sum(mask)


def selected_by_hand(model, x, y):
    return tf.reduce_mean(tf.boolean_mask(squares(model, x, y), y[:, 0] > 0))


def spread(model, x, y):
    values = squares(model, x, y)
    return tf.reduce_mean(tf.square(values - tf.reduce_mean(values)))


def against_each_other(model, x, y):
    features = tf.math.l2_normalize(model.hidden(x), axis=1)
    logits = tf.matmul(features, features, transpose_b=True)
    labels = tf.range(tf.shape(x)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def divided(model, x, y):
    """As tf.distribute's guide has it: `fit` is one replica."""
    return tf.reduce_mean(squares(model, x, y)) / tf.distribute.get_strategy().num_replicas_in_sync


TARGETS = {
    f.__name__: f
    for f in (
        squares,
        weighted_terms,
        a_sum_over_a_size,
        a_sum_over_their_number,
        an_average_loss,
        stacked,
        a_learned_factor,
        two_means,
        root,
        masked_by_hand,
        selected_by_hand,
        spread,
        against_each_other,
        divided,
    )
}


@pytest.mark.parametrize("name", tiers.cases(TARGETS, ["weighted_terms"]))
def test_a_target_of_any_kind_is_one_devices(name, trains_as_one_device):
    def step(model, x, y):
        with tf.GradientTape() as tape:
            target = TARGETS[name](model, x, y)
        model.update(tape.gradient(target, model.trainable_variables))

    trains(trains_as_one_device, step, lambda: optimizers.SGD(0.02))


# ---- gradients that wait until a window closes ----


def accumulating(**options):
    return lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2, **options)


def logged(model, x, y):
    gradients = gradients_of(model, x, y)
    model.update(gradients)
    return {"norm": tf.linalg.global_norm(gradients)}


WAITING = {
    "untouched": lambda model, x, y: model.update(gradients_of(model, x, y)),
    "two tapes": lambda model, x, y: model.update(
        [
            0.5 * (a + b)
            for a, b in zip(
                gradients_of(model, x, y), gradients_of(model, x[:, ::-1], y), strict=True
            )
        ]
    ),
    "in a function": plain_function_within,
    "by hand": by_hand,
    "for each example": per_example_clipping,
    "logged": logged,
    "clipped": by_global_norm,
}


@pytest.mark.parametrize("name", tiers.cases(WAITING, ["logged"]))
def test_accumulated_gradients_are_those_of_one_device(name, trains_as_one_device):
    trains(trains_as_one_device, WAITING[name], accumulating(global_clipnorm=0.2))
