"""Steps of the user's own where every share has one fixed number of examples.

There `tf.shape(x)` is a constant of the traced program, and says nothing of the batch any more.
"""

import harness
import keras
import pytest
import tensorflow as tf
import tiers

import tfdp


class OwnStep(keras.Model):
    """A model whose loss is a function of the model and a batch."""

    def __init__(self, loss):
        super().__init__()
        self.dense = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        self.of_batch = loss

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.of_batch(self, *data)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def building(loss):
    def build():
        model = OwnStep(loss)
        model.build((None, 5))
        model.compile(keras.optimizers.SGD(0.02))
        return model

    return build


def batches(replicas):
    """Batches of which each replica has four examples, as the dataset declares."""
    data = tf.data.Dataset.from_tensor_slices(harness.regression_data(8 * replicas))
    return data.batch(4 * replicas, drop_remainder=True)


def squares(model, x, y):
    return tf.square(model(x) - y)


def noisy(model, x, y):
    return tf.reduce_mean(squares(model, x + keras.random.normal((tf.shape(x)[0], 5)), y))


def latent(model, x, y):
    made = model(keras.random.normal(tf.concat([tf.shape(y)[:1], [5]], 0)))
    return tf.reduce_mean(squares(model, x, y)) + tf.reduce_mean(made**2)


def twice_the_latent(model, x, y):
    drawn = keras.random.uniform((2 * tf.shape(x)[0], 5))
    return tf.reduce_mean(squares(model, x, y)) + tf.reduce_mean(model(drawn))


def sum_over_number(model, x, y):
    return tf.reduce_sum(squares(model, x, y)) / tf.cast(tf.shape(x)[0], tf.float32)


def ones(model, x, y):
    return tf.reduce_mean(squares(model, x, y) * tf.ones([tf.shape(x)[0], 1]))


def of_a_layer(model, x, y):
    return tf.reduce_sum(squares(model, x, y)) / keras.ops.cast(keras.ops.shape(y)[0], "float32")


RIGHT = [noisy, latent, twice_the_latent, sum_over_number, of_a_layer, ones]


@pytest.mark.parametrize("loss", tiers.cases(RIGHT, [twice_the_latent, sum_over_number]))
def test_what_is_made_of_the_size_of_the_batch_is_one_devices(loss, replicas, trains_as_one_device):
    trains_as_one_device(building(loss), harness.fit_datasets(lambda: batches(replicas), epochs=1))


def sum_over_product(model, x, y):
    values = squares(model, x, y)
    return tf.reduce_sum(values) / tf.cast(tf.reduce_prod(tf.shape(values)), tf.float32)


def weighed_by_place(model, x, y):
    places = tf.cast(tf.range(tf.shape(x)[0]), tf.float32)
    return tf.reduce_mean(squares(model, x, y) * places[:, tf.newaxis])


def weighed_by_place_of_python(model, x, y):
    places = tf.range(x.shape[0], dtype=tf.float32)
    return tf.reduce_mean(squares(model, x, y) * places[:, tf.newaxis])


@pytest.mark.parametrize("loss", [sum_over_product, weighed_by_place])
def test_the_number_of_a_share_is_not_taken_for_that_of_the_batch(loss, replicas):
    model = harness.build_in_scope(building(loss), replicas)
    with pytest.raises(tfdp.errors.GradientError, match="must be a loss of Keras, or a mean"):
        model.fit(batches(replicas), verbose=0)


def sum_over_number_of_python(model, x, y):
    return tf.reduce_sum(squares(model, x, y)) / x.shape[0]


@pytest.mark.parametrize("loss", [weighed_by_place_of_python, sum_over_number_of_python])
def test_python_is_not_told_the_number_of_a_share(loss, replicas):
    model = harness.build_in_scope(building(loss), replicas)
    with pytest.raises((TypeError, ValueError)) as raised:
        model.fit(batches(replicas), verbose=0)
    assert "Use `tf.shape(x)[0]`" in "".join(raised.value.__notes__)
