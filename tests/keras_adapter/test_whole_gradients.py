"""Gradients are those of the whole batch as soon as they exist: whatever a step does with them."""

import contextlib
import logging

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops, optimizers

import tfdp

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
    )
}


TELLING = ["sharpness_aware", "second_order", "function_within", "per_example_clipping"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("by_global_norm", marks=pytest.mark.telling),
        *tiers.cases([n for n in AFTERWARDS if n != "by_global_norm"], TELLING),
    ],
)
def test_what_is_done_with_gradients_means_what_it_means_on_one_device(name, trains_as_one_device):
    trains(trains_as_one_device, AFTERWARDS[name])


# ---- what is differentiated ----


def weighted_terms(model, values):
    """A mean, a sum, and a penalty that has nothing of the batch in it, with factors."""
    penalty = tf.reduce_sum(tf.square(model.hidden.kernel))
    return 0.5 * (tf.reduce_mean(values) + 0.1 * tf.reduce_sum(values) / 7.0) - 0.01 * penalty


TARGETS = {
    "values per example": lambda model, values: values,
    "a sum": lambda model, values: 0.1 * tf.reduce_sum(values),
    "a sum over a size": lambda model, values: tf.nn.compute_average_loss(
        values, global_batch_size=8
    ),
    "a sum over their number": lambda model, values: (
        tf.reduce_sum(values) / tf.cast(tf.shape(values)[0], tf.float32)
    ),
    "an average loss": lambda model, values: tf.nn.compute_average_loss(values),
    "stacked": lambda model, values: tf.reduce_mean(
        tf.stack([tf.reduce_mean(values), 0.1 * tf.reduce_mean(values**2)])
    ),
    "weighted terms": weighted_terms,
    "a learned factor": lambda model, values: (
        tf.exp(-model.temperature) * tf.reduce_mean(values) + model.temperature
    ),
    "two means": lambda model, values: [tf.reduce_mean(values), tf.reduce_mean(values**2)],
}


@pytest.mark.parametrize("name", tiers.cases(TARGETS, ["weighted terms", "values per example"]))
def test_a_target_whose_reduction_can_be_seen_weighs_as_on_one_device(name, trains_as_one_device):
    def step(model, x, y):
        with tf.GradientTape() as tape:
            target = TARGETS[name](model, squares(model, x, y))
        model.update(tape.gradient(target, model.trainable_variables))

    trains(trains_as_one_device, step, lambda: optimizers.SGD(0.02))


# ---- what cannot be known ----


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


def printed(model, x, y):
    tf.print(model.distribute_strategy.num_replicas_in_sync, output_stream="file:///dev/null")
    return tf.reduce_mean(squares(model, x, y))


def divided(model, x, y):
    return tf.reduce_mean(squares(model, x, y)) / tf.distribute.get_strategy().num_replicas_in_sync


def scaled(model, x, y):
    inverse = 1.0 / tf.distribute.get_strategy().num_replicas_in_sync
    return inverse * tf.reduce_mean(squares(model, x, y))


def fits_once(strategy, loss, after=lambda gradients: gradients, optimizer=None, sizes=UNEVEN):
    """Trains on replicas alone; `loss` of the model and the batch is differentiated."""

    def step(model, x, y):
        with tf.GradientTape() as tape:
            target = loss(model, x, y)
        model.update(after(tape.gradient(target, model.trainable_variables)))

    harness.start_over()
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = Stepping(step)
        model.compile(optimizer or optimizers.SGD(0.1), jit_compile=False)
    model.fit(harness.batches_of(sizes, X, Y), verbose=0)
    return model


UNKNOWN = {f.__name__: f for f in (root, masked_by_hand, selected_by_hand, spread)}
UNKNOWN["against_each_other"] = against_each_other


@pytest.mark.parametrize("name", tiers.cases(UNKNOWN, ["root", "against_each_other"]))
def test_a_target_of_no_known_reduction_is_refused_and_the_option_named(name, replicas):
    with pytest.raises(tfdp.errors.GradientError, match="custom_loss") as raised:
        fits_once(harness.strategy(replicas), UNKNOWN[name])
    assert "Keras" in str(raised.value)


@pytest.mark.parametrize("said", tiers.first_of("divided", "mean"))
def test_what_is_said_of_a_target_is_how_it_is_weighed(said, replicas):
    """On even shares the loss of one device is the mean of the shares' roots."""
    sizes = [replicas * 2] * 2

    def of_shares(model, x, y):
        parts = tf.split(tf.square(y - model(x)), replicas)
        return tf.add_n([tf.sqrt(tf.reduce_mean(part)) for part in parts]) / replicas

    def divided_root(model, x, y):
        return root(model, x, y) / (replicas if said == "divided" else 1)

    expected = fits_once(None, of_shares, sizes=sizes)
    model = fits_once(harness.strategy(replicas, custom_loss=said), divided_root, sizes=sizes)
    harness.assert_close_arrays(harness.weights(model), harness.weights(expected), 1e-5, "weights")


def test_a_number_of_replicas_that_is_read_alone_changes_nothing(replicas, trains_as_one_device):
    for loss, found in ((printed, "not seen to be divided"), (scaled, "multiplied by its inve")):
        with pytest.raises(tfdp.errors.GradientError, match=found) as raised:
            fits_once(harness.strategy(replicas), loss)
        assert "custom_loss" in str(raised.value)

    def step(model, x, y):  # a loss of Keras is known; the number is read in the middle
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x))
        tf.distribute.get_strategy().num_replicas_in_sync  # noqa: B018
        gradients = tape.gradient(loss, model.trainable_variables)
        tf.distribute.get_strategy().num_replicas_in_sync  # noqa: B018
        model.update(gradients)

    trains(trains_as_one_device, step)
    expected = harness.weights(fits_once(None, divided))
    for loss, said in ((divided, None), (scaled, "divided"), (printed, "mean")):
        model = fits_once(harness.strategy(replicas, custom_loss=said), loss)
        harness.assert_close_arrays(harness.weights(model), expected, 1e-5, "weights")


@pytest.mark.parametrize(
    "said, reads",
    [
        (None, True),
        (None, False),
        *(pytest.param("mean", reads, marks=pytest.mark.exhaustive) for reads in (True, False)),
    ],
)
def test_a_factor_that_is_an_inverse_by_chance_stays_a_factor(said, reads, replicas, caplog):
    """It is named if the program has asked for the number of replicas, and nothing is said."""

    def fraction(model, x, y):
        penalty = tf.nn.scale_regularization_loss(0.1 * tf.square(model.out.kernel))
        mean = tf.nn.compute_average_loss(squares(model, x, y))
        return mean * (1 / replicas) + penalty * (1 / replicas)

    def fraction_of_keras(model, x, y):
        return keras.losses.MeanSquaredError()(y, model(x)) / replicas

    for loss in (fraction, fraction_of_keras):
        expected = harness.weights(fits_once(None, loss))
        strategy = harness.strategy(replicas, custom_loss=said)
        if reads:
            assert strategy.num_replicas_in_sync == replicas
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tfdp"):
            model = fits_once(strategy, loss)
        harness.assert_close_arrays(harness.weights(model), expected, 1e-5, "weights")
        named = [r for r in caplog.records if f"1/{replicas}" in r.getMessage()]
        assert len(named) == (said is None and reads)


def test_an_option_of_another_name_is_refused(replicas):
    with pytest.raises(ValueError, match="but received 'sum'"):
        harness.strategy(replicas, custom_loss="sum")


# ---- replicas stay alike ----


def noisy(draw):
    return lambda gradients: [g + 0.1 * draw(tf.shape(g)) for g in gradients]


@pytest.mark.parametrize(
    "draw",
    [
        tf.random.normal,
        pytest.param(
            lambda shape: keras.random.normal([*map(int, tf.get_static_value(shape))]),
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["TensorFlow's", "Keras'"],
)
def test_noise_on_gradients_is_the_same_on_all_replicas(draw, replicas):
    loss = lambda model, x, y: tf.reduce_mean(squares(model, x, y))  # noqa: E731
    model = fits_once(harness.strategy(replicas), loss, noisy(draw))
    harness.assert_replicas_identical(model)
    quiet = fits_once(harness.strategy(replicas), loss)
    assert (harness.weights(model)[0] != harness.weights(quiet)[0]).all()


def test_keras_noise_on_gradients_is_that_of_one_device(trains_as_one_device):
    def step(model, x, y):
        noise = noisy(lambda shape: keras.random.normal(tf.get_static_value(shape).tolist()))
        model.update(noise(gradients_of(model, x, y)))

    trains(trains_as_one_device, step)


def test_a_gradient_that_the_replicas_own_examples_change_is_refused(replicas):
    def step(model, x, y):
        gradients = gradients_of(model, x, y)
        model.update([g * tf.reduce_mean(y) for g in gradients])

    with harness.strategy(replicas).scope():
        model = Stepping(step)
        model.compile("sgd", jit_compile=False)
    with pytest.raises(tfdp.errors.GradientError, match="must be the same on all replicas"):
        model.fit(X, Y, batch_size=8, verbose=0)


# ---- gradients that wait until a window closes ----


def accumulating(**options):
    return lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2, **options)


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
}


@pytest.mark.parametrize("name", tiers.cases(WAITING, ["untouched", "two tapes"]))
def test_accumulated_gradients_are_those_of_one_device(name, trains_as_one_device):
    trains(trains_as_one_device, WAITING[name], accumulating(global_clipnorm=0.2))


def logged(model, x, y):
    gradients = gradients_of(model, x, y)
    model.update(gradients)
    return {"norm": tf.linalg.global_norm(gradients)}


EARLY = {f.__name__: f for f in (logged, by_global_norm, by_value)}


@pytest.mark.parametrize("eagerly", [False, True], ids=["in a graph", "eagerly"])
@pytest.mark.parametrize("name", tiers.cases(EARLY, ["logged"]))
def test_accumulated_gradients_that_are_used_before_their_sum_are_refused(name, eagerly, replicas):
    with harness.strategy(replicas).scope():
        model = Stepping(EARLY[name])
        model.compile(accumulating()(), jit_compile=False, run_eagerly=eagerly)
    with pytest.raises(tfdp.errors.GradientError, match="when its window closes"):
        model.fit(X, Y, batch_size=8, verbose=0)
