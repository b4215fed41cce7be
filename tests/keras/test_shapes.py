"""Batches whose sizes change, of which little is known: replicas take what one device takes."""

import random

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

METHODS = ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]


class Counting(keras.Model):
    """A model that notes the steps that are traced."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.traced = []

    def train_step(self, data):
        self.traced.append("fit")
        return super().train_step(data)

    def test_step(self, data):
        self.traced.append("evaluate")
        return super().test_step(data)

    def predict_step(self, data):
        self.traced.append("predict")
        return super().predict_step(data)


def of_images(**options):
    """A model of images of any size."""
    inputs = keras.Input([None, None, 2])
    hidden = layers.GlobalAveragePooling2D()(layers.Dense(3, "tanh")(inputs))
    model = Counting(inputs, layers.Dense(2)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **options)
    return model


def batches_of(shapes, draw):
    """Images of these shapes, targets, and weights of the examples."""
    values = np.random.default_rng(draw.randrange(1000))
    for shape in shapes:
        x = values.normal(size=(*shape, 2)).astype("float32")
        y = np.stack([x.mean((1, 2, 3)), x.std((1, 2, 3))], 1)
        yield x, y, values.uniform(size=shape[:1]).astype("float32")


def in_common(shapes, draw, declares):
    """The sizes that all have, each of them declared by chance."""
    return [
        sizes[0] if len({*sizes}) == 1 and draw.random() < declares else None
        for sizes in zip(*shapes, strict=True)
    ]


def dataset_of(batches, draw, declares):
    leaves = [[leaf.shape for leaf in each] for each in zip(*batches, strict=True)]
    rows, *sizes = in_common([x.shape for x, _, _ in batches], draw, declares)
    specs = ((rows, *sizes), (rows, *leaves[1][0][1:]), (rows,))
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=tuple(map(tf.TensorSpec, specs))
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def call(model, method, draw):
    """Calls a method of a model with data of random shapes; returns what it gives."""
    count = 1 if method.endswith("batch") else draw.randint(1, 3)
    shapes = [[draw.choice([1, 3, 4, 6]), draw.choice([2, 3]), draw.choice([2, 5])]] * count
    for axis in range(3):  # those that change
        if draw.random() < 0.5:
            sizes = [1, 4, 5] if axis == 0 else [1, 2, 4]
            shapes = [[*s[:axis], draw.choice(sizes), *s[axis + 1 :]] for s in shapes]
    batches = list(batches_of(shapes, draw))
    x, y, weight = batches[0]
    if method == "predict_on_batch":
        return model.predict_on_batch(x)
    if method.endswith("batch"):
        return getattr(model, method)(x, y, sample_weight=weight, return_dict=True)
    kind = draw.choice(["arrays", "dataset", "generator"])
    if kind == "arrays":
        given = {"x": x, "batch_size": draw.choice([2, 3, 8])}
        if method != "predict":
            given |= {"y": y, "sample_weight": weight}
    elif kind == "dataset":
        given = {"x": dataset_of(batches, draw, draw.choice([0.0, 0.5, 1.0]))}
    else:
        given = {"x": (each for each in batches)}  # Keras looks at the first two
        batches[2:] = batches[2:] and batches[:1]
    if method == "fit" and kind != "generator":
        given |= {"shuffle": False, "validation_data": (x[:, :1], y)} if draw.random() < 0.5 else {}
    found = getattr(model, method)(**given, verbose=0)
    return found.history if method == "fit" else found


def in_turn(seed):
    """Returns a `use` that calls a model's methods in a random order."""

    def use(model):
        draw = random.Random(seed)
        seen = {f"{number}": call(model, draw.choice(METHODS), draw) for number in range(6)}
        return seen | {"traced": {name: model.traced.count(name) for name in METHODS[:3]}}

    return use


@pytest.mark.parametrize(
    ("seed", "options", "replicas"),
    tiers.first_of(
        (0, {}, harness.THREE),
        (1, {}, 1),
        (2, {}, 2),
        (3, {"steps_per_execution": 2}, 2),
        (4, {"jit_compile": True}, 2),
        *((seed, {}, 3) for seed in range(5, 9)),
    ),
)
def test_calls_with_any_shapes_in_any_order_are_one_devices(seed, options, replicas):
    def trained(count):
        build = lambda: of_images(**options)  # noqa: E731
        outcome = harness.train(build, in_turn(seed), count, one_device_eagerly=False)
        return outcome, outcome.seen.pop("traced")

    one, traces = harness.once(lambda: trained(None))
    found, own = trained(replicas)
    harness.assert_same_outcome(found, one)
    assert all(own[name] <= traces[name] for name in traces), (own, traces)


def sequences(sizes):
    """Batches of as many rows, of sequences as long, padded with zeros."""
    draw = np.random.default_rng(0)
    for rows, length in sizes:
        ends = draw.integers(1, length + 1, [rows, 1])
        ends[0] = length
        tokens = draw.integers(1, 10, [rows, length]) * (np.arange(length) < ends)
        yield tokens.astype("int32"), (tokens.sum(1) % 2).astype("int32")


def in_buckets(sizes):
    specs = (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32))
    dataset = tf.data.Dataset.from_generator(lambda: sequences(sizes), output_signature=specs)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(sizes)))


@pytest.mark.telling
def test_batches_of_sequences_as_long_as_each_other_are_one_devices(trains_as_one_device):
    """Processes whose replicas have other numbers of rows run the same programs of `predict`."""

    def build():
        hidden = [layers.Embedding(10, 4, mask_zero=True), layers.GlobalAveragePooling1D()]
        model = keras.Sequential([*hidden, layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
        return model

    def use(model):
        every = [(4, 13), (3, 13), (2, 17), (2, 13), (1, 5)]
        fit = {"validation_data": in_buckets(every[1:]), "verbose": 0}
        seen = {"history": model.fit(in_buckets(every), **fit).history}
        return seen | {"outputs": model.predict(in_buckets(every), verbose=0)}

    trains_as_one_device(build, use)


class SumOfAll(keras.Model):
    """A model of tensors of any rank."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return tf.reduce_sum(tf.reshape(x * self.scale, [tf.shape(x)[0], -1]), 1, keepdims=True)


@pytest.mark.exhaustive("test_batches_of_sequences_as_long_as_each_other_are_one_devices")
def test_a_model_is_called_with_tensors_of_other_ranks(trains_as_one_device):
    def build():
        model = SumOfAll()
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    def use(model):
        seen = {}
        for shape in ((4, 2), (5, 3, 2), (1, 2, 2, 2)):
            x = np.random.default_rng(0).normal(size=shape).astype("float32")
            y = x.reshape(len(x), -1)[:, :1]
            loss = model.fit(x, y, verbose=0).history["loss"]
            ways = model.train_on_batch(x, y), model.predict_on_batch(x)
            seen[f"{shape}"] = [loss, *ways, model.predict(x, verbose=0)]
        return seen

    trains_as_one_device(build, use)
