"""Losses that set examples against each other: Keras' are refused, users' are named."""

import inspect
import itertools
import logging

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.keras_adapter._keras import set_keras_mask

EXAMPLES, STEPS, CLASSES = 5, 4, 3
REDUCTIONS = ["sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", None]
REFUSED = {"Circle", "Dice", "Tversky", "circle", "dice", "tversky"}
NO_LOSSES = {"Loss", "deserialize", "get", "serialize"}

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


def per_example(reduction):
    """Losses that are refused without an axis."""
    return {
        f"{kind.__name__} of an axis": kind(axis=(1, 2), reduction=reduction)
        for kind in (keras.losses.Dice, keras.losses.Tversky)
    }


class Walking(keras.Model):
    """Evaluates and differentiates every loss of Keras in one step."""

    def __init__(self, reduction):
        super().__init__()
        public = [n for n in vars(keras.losses) if not n.startswith("_") and n not in NO_LOSSES]
        self.chosen = {n: made(n, reduction) for n in public} | per_example(reduction)
        self.refused = {}
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
                set_keras_mask(y_pred, mask)
            values["weighted"] = loss(y_true, y_pred, weights)
        return values

    def train_step(self, data):
        x, labels, weights, mask = data
        logs = {}
        for name in self.chosen:
            try:
                with tf.GradientTape() as tape:
                    values = self.evaluated(name, x, labels, weights, mask)
            except tfdp.errors.GradientError as error:
                self.refused[name] = str(error)
                continue
            slope = tape.gradient(list(values.values()), self.kernel)
            logs[f"{name}, gradient"] = tf.reduce_sum(tf.abs(slope))
            logs |= {f"{name}, {kind}": tf.reduce_mean(value) for kind, value in values.items()}
        return logs


def walked(reduction, replicas=None):
    """What one step says of all losses, and which were refused."""

    def build():
        model = Walking(reduction)
        model.compile("sgd", jit_compile=False)
        return model

    model = harness.build_in_scope(build, replicas)
    data = harness.batches_of([EXAMPLES], X, LABELS, WEIGHTS, MASK)
    return model.fit(data, verbose=0).history, model.refused


@pytest.mark.parametrize("replicas", [2], ids=harness.count_id)
@pytest.mark.parametrize(
    "reduction",
    [REDUCTIONS[0], *(pytest.param(r, marks=pytest.mark.exhaustive) for r in REDUCTIONS[1:])],
)
def test_every_loss_of_keras_is_exact_or_refused_by_name(reduction, replicas, caplog):
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        seen, refused = walked(reduction, replicas)
    assert not [r for r in caplog.records if r.name == "tfdp"]
    assert set(refused) == REFUSED
    for name, message in refused.items():
        assert repr(name) in message
        assert ("`axis`" in message) == ("ircle" not in name)
    expected, _ = walked(reduction)
    kept = {name: value for name, value in expected.items() if name.split(",")[0] not in REFUSED}
    assert len(kept) > 80
    harness.assert_close(dict(sorted(seen.items())), dict(sorted(kept.items())), 3e-5)
