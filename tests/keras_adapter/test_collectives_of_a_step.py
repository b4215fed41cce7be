"""The collectives that each kind of step makes, and which of them its gradients wait for."""

import dataclasses

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.engines import TensorFlowEngine

CLASSES = 4


@dataclasses.dataclass
class Collective:
    """One collective of a replica: what it is given and what it returns, in the graph."""

    given: tf.Tensor
    returned: tf.Tensor


@pytest.fixture
def traced(unsharded, monkeypatch):
    """By rank the collectives of the step that was traced last, by a strategy that does not shard.

    With `shard` a bucket is one of parts, and weights travel, too.
    """
    found = {}

    def noting(original):
        def noted(self, tensor, group):
            context = tf.distribute.get_replica_context()
            rank = int(tf.get_static_value(context.replica_id_in_sync_group))
            returned = original(self, tensor, group)
            found.setdefault(rank, []).append(Collective(tensor, returned))
            return returned

        return noted

    for name in ("all_reduce", "all_gather"):
        monkeypatch.setattr(TensorFlowEngine, name, noting(getattr(TensorFlowEngine, name)))
    return found


def is_computed_from(tensor, ancestor):
    """Whether the graph needs the operation of `ancestor` to compute `tensor`."""
    ahead, seen = [tensor.op], set()
    while ahead:
        op = ahead.pop()
        if op is ancestor.op:
            return True
        if op not in seen:
            seen.add(op)
            outside = {id(inner): outer for outer, inner in getattr(op.graph, "captures", ())}
            ahead += [
                outside[id(v)].op for v in op.outputs if tf.is_symbolic_tensor(outside.get(id(v)))
            ]
            ahead += [value.op for value in op.inputs]
    return False


def counts(traced, parameters):
    """The number of collectives that gradients wait for, of gradients' own, and of others.

    Args:
      traced: The collectives by rank.
      parameters: The number of the model's trainable scalars, which are in one bucket.
    """
    each = set()
    for collectives in traced.values():
        sizes = [collective.given.shape.num_elements() for collective in collectives]
        (bucket,) = [c for c, size in zip(collectives, sizes, strict=True) if size == parameters]
        others = [c for c in collectives if c is not bucket]
        before = [c for c in others if is_computed_from(bucket.given, c.returned)]
        each.add((len(before), 1, len(others) - len(before)))
    (same,) = each
    return same


def classifier(*layers, loss=None, optimizer="sgd", **options):
    """A model with a fixed number of classes; `layers` come before the last."""
    model = keras.Sequential([keras.Input([5]), *layers, keras.layers.Dense(CLASSES)])
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer() if callable(optimizer) else optimizer, loss, **options)
    return model


def two_outputs():
    inputs = keras.Input([5])
    outputs = [keras.layers.Dense(CLASSES, name="a")(inputs), keras.layers.Dense(1)(inputs)]
    model = keras.Model(inputs, outputs)
    losses = [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"]
    model.compile("sgd", losses, loss_weights=[1.0, 0.5], metrics=[["accuracy"], ["mae"]])
    return model


class OwnStep(keras.Sequential):
    """Trains as the guide of Keras has it."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, outputs)
        return {metric.name: metric.result() for metric in self.metrics}


def own_step():
    model = OwnStep([keras.Input([5]), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def sgd(**options):
    return lambda: keras.optimizers.SGD(0.1, **options)


def images():
    rng = np.random.default_rng(0)
    return rng.normal(size=(14, 5)).astype("float32"), rng.integers(0, CLASSES, 14)


def weights():
    return {"sample_weight": np.random.default_rng(1).uniform(size=14).astype("float32")}


def masked():
    inputs = keras.layers.Masking(name="masking")
    layers = [keras.layers.Reshape([5, 1]), inputs, keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input([5]), *layers, keras.layers.Dense(CLASSES)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def sequences():
    """Sequences of five steps, with a label for each."""
    x, y = images()
    return {"y": np.repeat(y[:, None], 5, 1), "x": x}


# By the kind of step: how the model is made, what `fit` is given, and the number of collectives
# that gradients wait for, of gradients, and of the end.
KINDS = {
    "plain": (lambda: classifier(metrics=["accuracy"]), dict, (0, 1, 1)),
    "two outputs": (two_outputs, lambda: {"y": [images()[1], images()[0][:, :1]]}, (0, 1, 1)),
    "sample weights": (lambda: classifier(weighted_metrics=["accuracy"]), weights, (0, 1, 1)),
    "class weights": (classifier, lambda: {"class_weight": {0: 2.0, 1: 0.5}}, (0, 1, 1)),
    "a sum": (
        lambda: classifier(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        ),
        dict,
        (0, 1, 1),
    ),
    "penalties": (
        lambda: classifier(
            keras.layers.Dense(3, kernel_regularizer="l2"), keras.layers.ActivityRegularization(0.1)
        ),
        dict,
        (0, 1, 1),
    ),
    "statistics": (
        lambda: classifier(keras.layers.BatchNormalization(), metrics=["accuracy"]),
        dict,
        (0, 1, 1),
    ),
    "clipping": (lambda: classifier(optimizer=sgd(global_clipnorm=1.0)), dict, (0, 1, 1)),
    "accumulation": (
        lambda: classifier(optimizer=sgd(gradient_accumulation_steps=2)),
        dict,
        (0, 1, 1),
    ),
    "loss scale": (
        lambda: classifier(optimizer=lambda: keras.optimizers.LossScaleOptimizer(sgd()())),
        dict,
        (0, 1, 1),
    ),
    "a mask": (masked, sequences, (1, 1, 1)),
    "a mean of weights": (
        lambda: classifier(
            loss=keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        ),
        weights,
        (1, 1, 1),
    ),
    "synchronized statistics": (
        lambda: classifier(
            keras.layers.Dense(3), keras.layers.BatchNormalization(synchronized=True)
        ),
        dict,
        (4, 1, 1),
    ),
    # The value of the loss, which the step may use, and the metrics.
    "a step of one's own": (own_step, dict, (0, 1, 2)),
}


@pytest.mark.telling
@pytest.mark.parametrize(
    "kind", tiers.cases(KINDS, ["plain", "a mask", "statistics", "a step of one's own"])
)
def test_gradients_wait_for_nothing_that_is_known_and_the_rest_travels_together(kind, traced):
    build, given, expected = KINDS[kind]
    model = harness.build_in_scope(build, 2)
    x, y = images()
    model.fit(**{"x": x, "y": y, **given()}, batch_size=7, verbose=0)
    parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert counts(traced, parameters) == expected
