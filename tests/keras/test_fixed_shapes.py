"""Steps of the user's own where every batch has one fixed number of examples, which Python sees."""

import harness
import keras
import tensorflow as tf


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
        model.compile(keras.optimizers.SGD(0.005))
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


def sum_over_product(model, x, y):
    values = squares(model, x, y)
    return tf.reduce_sum(values) / tf.cast(tf.reduce_prod(tf.shape(values)), tf.float32)


def weighed_by_place(model, x, y):
    places = tf.cast(tf.range(tf.shape(x)[0]), tf.float32)
    return tf.reduce_mean(squares(model, x, y) * places[:, tf.newaxis])


def sum_over_number_of_python(model, x, y):
    return tf.reduce_sum(squares(model, x, y)) / x.shape[0]


LOSSES = [
    noisy,
    latent,
    twice_the_latent,
    sum_over_number,
    ones,
    of_a_layer,
    sum_over_product,
    weighed_by_place,
    sum_over_number_of_python,
]


def test_what_is_made_of_the_size_of_the_batch_is_one_devices(replicas, trains_as_one_device):
    def loss(model, x, y):
        return tf.add_n([one(model, x, y) for one in LOSSES])

    trains_as_one_device(building(loss), harness.fit_datasets(lambda: batches(replicas), epochs=1))


class OfItsBatch(keras.layers.Layer):
    """Has a number for each example of the batches that it was built for."""

    def build(self, shape):
        self.numbers = self.add_weight(shape=(shape[0], 1), initializer="ones")

    def call(self, x):
        return x * self.numbers


def test_a_model_is_built_for_the_batch_and_not_for_a_share(trains_as_one_device):
    def build():
        model = keras.Sequential([OfItsBatch(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse")
        return model

    def use(model):
        model.fit(batches(3), verbose=0)
        return model.layers[0].numbers.shape

    trains_as_one_device(build, use)
