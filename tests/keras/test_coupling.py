"""Losses that set examples against each other, and every loss of Keras, are one device's."""

import inspect
import itertools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

import tfdp

EXAMPLES, STEPS, CLASSES = 5, 4, 3
REDUCTIONS = ["sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", None]
NO_LOSSES = {"Loss", "deserialize", "get", "serialize"}
ALL = {n for n in vars(keras.losses) if not n.startswith("_")} - NO_LOSSES
AXES = ["Dice", "Tversky"]
FEW = {"Circle", "Dice", "Tversky", "CategoricalCrossentropy"}  # the first three mix examples

RNG = np.random.default_rng(3)
X = RNG.normal(size=(EXAMPLES, STEPS, CLASSES)).astype("float32")
LABELS = RNG.integers(0, CLASSES, (EXAMPLES, STEPS)).astype("int32")
WEIGHTS = RNG.uniform(0.1, 3.0, (EXAMPLES, STEPS)).astype("float32")
MASK = np.arange(STEPS) < np.array([[4], [1], [2], [4], [3]])


def made(name, reduction):
    """The loss of a public name, as `compile` makes it of a function."""
    found = getattr(keras.losses, name)
    if inspect.isclass(found):
        return found(reduction=reduction)
    of_function = keras.losses.MeanSquaredError.__base__
    required = {"q": 0.5} if "generalized" in name else {}
    return of_function(found, name=name, reduction=reduction, **required)


def with_axis(name, reduction):
    """A loss that without one mixes examples."""
    return getattr(keras.losses, name)(axis=(1, 2), reduction=reduction)


class Walking(keras.Model):
    """Evaluates and differentiates every loss of Keras in one step."""

    def __init__(self, names, reductions):
        super().__init__()
        self.chosen = {n: made(n, r) for n, r in zip(sorted(names), reductions, strict=False)}
        self.chosen |= {
            f"{n} of an axis": with_axis(n, r) for n, r in zip(AXES, reductions, strict=False)
        }
        self.kernel = self.add_weight(shape=(CLASSES, CLASSES), initializer="glorot_uniform")
        self.built = True

    def arguments(self, name, labels, weights, logits):
        """Targets, predictions and weights of the shapes that a loss takes."""
        lowered = name.lower().replace("_", "")
        one_of_each = "axis" in name or lowered == "ctc"
        weights = weights[:, 0] if one_of_each or lowered == "circle" else weights
        if lowered == "ctc":
            return 1 + labels[:, :1] % 2, logits, weights
        if lowered == "circle":
            return labels[:, 0], tf.math.l2_normalize(logits[:, 0], -1), weights
        sparse = "sparse" in lowered or "generalized" in lowered
        return labels if sparse else tf.one_hot(labels, CLASSES), tf.nn.softmax(logits), weights

    def evaluated(self, name, x, labels, weights, mask):
        """The loss without weights, and of a class also with weights and a mask."""
        logits = tf.einsum("ntc,cd->ntd", x, self.kernel)
        y_true, y_pred, weights = self.arguments(name, labels, weights, logits)
        loss = self.chosen[name]
        values = {"plain": loss(y_true, y_pred)}
        if not name[0].islower():
            if y_pred.shape.rank == 3 and weights.shape.rank == 2:
                y_pred._keras_mask = mask
            values["weighted"] = loss(y_true, y_pred, weights)
        return values

    def train_step(self, data):
        x, labels, weights, mask = data
        logs = {}
        for name in self.chosen:
            with tf.GradientTape() as tape:
                values = self.evaluated(name, x, labels, weights, mask)
            slope = tape.gradient(list(values.values()), self.kernel)
            logs[f"{name}, gradient"] = tf.reduce_sum(tf.abs(slope))
            logs |= {f"{name}, {kind}": tf.reduce_mean(value) for kind, value in values.items()}
        return logs


@pytest.mark.parametrize(
    ("names", "reductions"),
    tiers.first_of(*((FEW, [reduction]) for reduction in REDUCTIONS), (ALL, REDUCTIONS)),
    ids=[f"{len(FEW)} of {reduction}" for reduction in REDUCTIONS] + ["all"],
)
def test_a_loss_of_keras_is_one_devices(names, reductions, trains_as_one_device):
    """Among all, reductions go round: what they do is the same for all losses."""

    def build():
        model = Walking(names, itertools.cycle(reductions))
        model.compile("sgd", jit_compile=False)
        return model

    def fit(model):
        data = harness.batches_of([EXAMPLES], X, LABELS, WEIGHTS, MASK)
        return model.fit(data, verbose=0).history

    trains_as_one_device(build, fit, seen_tolerance=3e-5)


# ---- users' losses ----


def against_the_batch(y_true, y_pred):
    """In-batch negatives: a value for each example, of all."""
    logits = tf.matmul(y_pred, y_true, transpose_b=True)
    rows = tf.range(tf.shape(y_pred)[0])
    return keras.losses.sparse_categorical_crossentropy(rows, logits, from_logits=True)


class OfWholeBatch(keras.losses.Loss):
    """In-batch negatives over all replicas' examples."""

    def call(self, y_true, y_pred):
        return against_the_batch(*tfdp.whole_batch((y_true, y_pred)))


FLAT, TARGETS = X[:, 0], X[:, 1]


def build(loss):
    model = keras.Sequential([keras.Input((CLASSES,)), keras.layers.Dense(CLASSES)])
    model.compile(keras.optimizers.SGD(0.1), loss=loss, jit_compile=False)
    return model


@pytest.mark.parametrize(
    "loss",
    tiers.first_of(against_the_batch, OfWholeBatch(reduction="sum")),
    ids=["of the batch", "of the whole batch by its name"],
)
def test_a_loss_of_the_users_own_is_one_devices(loss, trains_as_one_device):
    trains_as_one_device(
        lambda: build(loss), lambda m: harness.fit_arrays(m, FLAT, TARGETS, EXAMPLES)
    )
