"""A replica without examples leaves no trace, and no layer sees a batch of none."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops

import tfdp

RNG = np.random.default_rng(2)
IMAGES = RNG.normal(size=(9, 8, 8, 3)).astype("float32")
LABELS = (np.arange(9) % 3).astype("int32")
SOUNDS = RNG.normal(size=(5, 600)).astype("float32")
STEPS = RNG.normal(size=(5, 4, 3)).astype("float32")


class Refusing(layers.Layer):
    """What many operations are: it cannot do without an example."""

    def call(self, x):
        assert x.shape[0] != 0, "a static batch of none"
        found = tf.debugging.assert_positive(tf.shape(x)[0])
        with tf.control_dependencies([found] if found is not None else []):
            return tf.identity(x)


def convolutions():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            Refusing(),
            layers.Conv2D(2, 3, activation="relu"),
            layers.DepthwiseConv2D(2),
            layers.Conv2DTranspose(2, 2),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=metrics)
    return model


def of_few(x, y):
    """Returns a `use` whose batches have fewer examples than there are replicas, some of them."""

    def use(model):
        return {
            "fit": harness.fit_arrays(model, x, y, batch_size=4),
            "evaluate": model.evaluate(x[:1], y[:1], verbose=0, return_dict=True),
            "predict": model.predict(x[:1], verbose=0),
        }

    return use


@pytest.mark.exhaustive("test_convolutions_of_fewer_images_than_replicas")
def test_single_batches_of_fewer_images_than_replicas(trains_as_one_device):
    def use(model):
        return {
            "predict_on_batch": model.predict_on_batch(IMAGES[:1]),
            "test_on_batch": model.test_on_batch(IMAGES[:1], LABELS[:1], return_dict=True),
            "train_on_batch": model.train_on_batch(IMAGES[:2], LABELS[:2], return_dict=True),
            "predict": model.predict(IMAGES, batch_size=4, verbose=0),
        }

    trains_as_one_device(convolutions, use)


@harness.on_three_and_four_replicas
def test_convolutions_of_fewer_images_than_replicas(trains_as_one_device):
    trains_as_one_device(convolutions, of_few(IMAGES, LABELS))


def ctc():
    model = keras.Sequential(
        [keras.Input((4, 3)), Refusing(), layers.LSTM(3, return_sequences=True)]
    )
    model.compile(keras.optimizers.SGD(0.1), keras.losses.CTC())
    return model


@pytest.mark.exhaustive("test_convolutions_of_fewer_images_than_replicas")
def test_a_loss_that_cannot_do_without_examples(trains_as_one_device):
    y = np.array([[1, 2], [1, 0], [2, 1], [1, 1], [2, 0]], "int32")
    trains_as_one_device(ctc, of_few(STEPS, y))


def spectrogram():
    model = keras.Sequential(
        [
            keras.Input((600,)),
            Refusing(),
            layers.MelSpectrogram(num_mel_bins=4, fft_length=256, sequence_stride=128),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(1e-4), "mse", metrics=["mae"])
    return model


@pytest.mark.exhaustive("test_convolutions_of_fewer_images_than_replicas")
def test_a_spectrogram_of_fewer_sounds_than_replicas(trains_as_one_device):
    trains_as_one_device(spectrogram, of_few(SOUNDS, SOUNDS[:, :3]))


class Stateful(layers.Layer):
    """Keeps what it sees in variables of several kinds."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], trainable=False, initializer="zeros")
        self.calls = self.add_weight(shape=(), trainable=False, dtype="int32", initializer="zeros")

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
            self.calls.assign_add(1)
        self.add_loss(1e-2 * ops.mean(ops.square(x)))
        return x


class Own(keras.Model):
    """Sums and gathers by hand, and writes metrics of every kind."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.total = keras.metrics.Sum(name="total")
        self.rows = keras.metrics.Mean(name="rows")
        self.mean = keras.metrics.Mean(name="mean")
        self.last = keras.metrics.MeanSquaredError(name="last")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        whole, summed, mean = x, ops.sum(x), tf.constant(2.0)
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            whole = context.all_gather(x, axis=0)
            summed = context.all_reduce("SUM", summed)
            mean = context.all_reduce("mean", {"of": mean})["of"]
        self.last.update_state(y, self(x))
        self.rows.update_state(ops.cast(ops.shape(whole)[0], "float32"))
        self.total.update_state(summed)
        self.mean.update_state(mean)
        metrics = (self.last, self.rows, self.total, self.mean)
        return {metric.name: metric.result() for metric in metrics}


def own():
    inputs = keras.Input((3,))
    model = Own(inputs, layers.Dense(3)(Stateful()(inputs)))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def test_a_stand_in_leaves_no_state_and_is_in_no_sum(trains_as_one_device):
    x, y = STEPS[:, 0], STEPS[:, 1]
    trains_as_one_device(own, lambda model: harness.fit_arrays(model, x, y, batch_size=4, epochs=3))


X, Y = harness.regression_data(5)


class Alternating(keras.Model):
    """Counts its steps in a weight, and trains the second layer in every second step only."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(3, activation="tanh"), layers.Dense(1)
        self.steps, self.halves = (
            self.add_weight(name=name, shape=(), dtype=dtype, trainable=False, initializer="zeros")
            for name, dtype in (("steps", "int32"), ("halves", "float32"))
        )

    def call(self, x):
        return self.second(self.first(x))

    def gradients(self, layer, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        return tape.gradient(loss, layer.trainable_variables)

    def train_step(self, data):
        x, y = data
        self.steps.assign_add(1)
        self.halves.assign(self.halves + 0.5)
        gradients = self.gradients(self.first, x, y)
        scaled = [gradient / (1.0 + self.halves) for gradient in gradients]
        self.optimizer.apply_gradients(zip(scaled, self.first.trainable_variables, strict=True))

        def train_second():
            own = self.second.trainable_variables
            for variable, gradient in zip(own, self.gradients(self.second, x, y), strict=True):
                variable.assign_sub(0.1 * gradient)
            return self.steps % 2

        return {"odd": tf.cond(self.steps % 2 == 0, train_second, lambda: self.steps % 2)}


def alternating():
    model = Alternating()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_a_counter_of_steps_goes_on_where_there_is_no_example(trains_as_one_device):
    """Else replicas would take different branches, and those in the sum wait for ever."""
    x = RNG.normal(size=(9, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    trains_as_one_device(alternating, lambda model: harness.fit_arrays(model, x, y, batch_size=4))


def refusing():
    model = keras.Sequential([keras.Input((5,)), Refusing(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return model


def stream():
    return tfdp.data.pipeline(tf.data.Dataset.from_tensor_slices((X, Y)), 4, seed=1)


# Of each the last batch, or every one, leaves replicas without examples.
FEEDS = {
    "batches of one": lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(1, True),
    "a pipeline": lambda: tfdp.data.pipeline((X, Y), 4, seed=1),
    "a pipeline that maps": lambda: tfdp.data.pipeline(
        (X, Y), 4, seed=1, map_fn=lambda x, y: (x, y)
    ),
    "a stream": stream,
}
FAST = {"a pipeline that maps"}


@pytest.mark.parametrize(
    "feed",
    tiers.cases(FEEDS, FAST),
)
def test_shares_of_every_source_have_stand_ins(feed, trains_as_one_device):
    trains_as_one_device(refusing, harness.fit_datasets(FEEDS[feed], then=["evaluate", "predict"]))


@pytest.mark.slow
@harness.in_one_process
@pytest.mark.parametrize(
    ("examples", "steps"),
    tiers.first_of((9, 2), (9, 1), (12, 1)),
)
def test_every_epoch_of_a_datasets_function_has_its_steps(examples, steps):
    x, y = harness.regression_data(examples)
    data = tf.data.Dataset.from_tensor_slices((x, y))

    def of_a_function(model):
        strategy = model.distribute_strategy
        batches = strategy.distribute_datasets_from_function(lambda context: data.batch(3))
        return used(model, batches)

    def used(model, batches):
        seen = {"fit": model.fit(batches, epochs=3, verbose=0).history}
        seen["evaluate"] = model.evaluate(batches, verbose=0, return_dict=True)
        return seen | {"predict": model.predict(batches, verbose=0)}

    def build():
        model = refusing()
        model.steps_per_execution = steps
        return model

    one = harness.train(build, lambda model: used(model, data.batch(6)))
    harness.assert_same_outcome(harness.train(build, of_a_function, 2), one)
