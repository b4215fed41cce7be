"""Gradients of every kind: sparse, missing, frozen, and those of added losses."""

import harness
import keras
import numpy as np
import pytest
import tiers
from keras import layers, losses, ops, optimizers

OPTIMIZERS = {
    "momentum": lambda: optimizers.SGD(0.2, momentum=0.9),
    "Adam": lambda: optimizers.Adam(0.05),
}


def token_data(examples=21, steps=4):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, (examples, steps)).astype("int32")
    ids[:, 1] = ids[:, 0]  # duplicates within an example, and between replicas
    return ids, ids.sum(1, keepdims=True).astype("float32") / 5


@pytest.mark.parametrize("name", tiers.first_of("Adam", "momentum"))
def test_sparse_gradients_train_as_on_one_device(name, trains_as_one_device):
    def build():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                layers.Embedding(9, 3),  # ids 6 to 8 never occur
                layers.GlobalAveragePooling1D(),
                layers.Dense(1),
            ]
        )
        model.compile(OPTIMIZERS[name](), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, *token_data()))


class Places(layers.Layer):
    """Looks up positions, and tables at fixed places; one of them at the examples' places, too."""

    def build(self, shape):
        self.positions = self.add_weight(shape=(4, 3), initializer="uniform", name="positions")
        self.table = self.add_weight(shape=(2, 3), initializer="uniform", name="table")
        self.both = self.add_weight(shape=(4, 3), initializer="uniform", name="both")

    def call(self, x):
        positions = ops.take(self.positions, ops.arange(ops.shape(x)[1]), axis=0)
        of_examples = ops.take(self.both, ops.cast(ops.abs(x[..., 0]), "int32") % 4, axis=0)
        x = x * of_examples * ops.take(self.both, [2, 0, 0, 3], axis=0)
        return x * positions * ops.take(self.table, [0, 1, 1, 0], axis=0)


def test_rows_that_do_not_depend_on_the_batch_come_as_often_as_on_one_device(trains_as_one_device):
    def build():
        model = keras.Sequential([keras.Input((None, 3)), Places(), layers.GlobalMaxPooling1D()])
        model.compile(optimizers.Adam(0.05), loss="mse")
        return model

    x = np.random.default_rng(0).normal(size=(21, 4, 3))
    trains_as_one_device(build, lambda model: harness.fit_arrays(model, x, x.max(1)))


@pytest.mark.slow
def test_an_embedding_that_is_also_used_densely_trains_as_on_one_device(trains_as_one_device):
    def build():
        embedding = layers.Embedding(6, 3)
        inputs = keras.Input((4,), dtype="int32")
        hidden = layers.GlobalAveragePooling1D()(embedding(inputs))
        outputs = layers.Dense(6, activation="softmax")(hidden)
        model = keras.Model(inputs, outputs)
        embedding.embeddings.regularizer = keras.regularizers.L2(0.1)
        model.compile(optimizers.SGD(0.5), loss="sparse_categorical_crossentropy")
        return model

    ids, _ = token_data()
    trains_as_one_device(build, lambda model: harness.fit_arrays(model, ids, ids[:, 0]))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_variables_without_a_gradient_stay_as_they_are(trains_as_one_device):
    class PartlyUsed(keras.Model):
        def __init__(self):
            super().__init__()
            self.unused = layers.Dense(3)
            self.used = layers.Dense(1)

        def build(self, shape):
            self.unused.build(shape)
            self.used.build(shape)

        def call(self, x):
            return self.used(x)

    def build():
        model = PartlyUsed()
        model.build((None, 5))
        model.compile(optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.2), loss="mse")
        return model

    outcome, _ = trains_as_one_device(build)
    before = harness.weights(harness.build_in_scope(build))
    np.testing.assert_array_equal(outcome.weights[0], before[0])
    assert np.any(outcome.weights[2] != before[2])


@pytest.mark.exhaustive("test_variables_without_a_gradient_stay_as_they_are")
def test_frozen_layers_stay_as_they_are(trains_as_one_device):
    def build():
        model = harness.dense_model()
        model.layers[0].trainable = False
        model.compile(optimizers.SGD(0.1, weight_decay=0.1), loss="mse")
        return model

    outcome, _ = trains_as_one_device(build)
    before = harness.weights(harness.build_in_scope(build))
    np.testing.assert_array_equal(outcome.weights[0], before[0])
    assert np.any(outcome.weights[2] != before[2])


class AddedLosses(layers.Layer):
    """Adds losses of its input: a mean over the batch, and one of Keras."""

    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        self.add_loss(losses.Huber(delta=0.1)(ops.zeros_like(x), x))
        return x


def test_added_losses_count_as_on_one_device(trains_as_one_device):
    x, y = harness.regression_data(17)
    penalty = keras.regularizers.L1L2(0.01, 0.1)
    penalties = {"kernel_regularizer": penalty, "activity_regularizer": penalty}

    def build():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(6, activation="tanh", **penalties),
                layers.ActivityRegularization(0.01, 0.1),
                AddedLosses(),
                layers.Dense(1),
            ]
        )
        model.compile(optimizers.SGD(0.1), loss="mse", metrics=["mae"])
        return model

    use = harness.fit_datasets(lambda: harness.batches_of([3, 8, 1, 5], x, y))
    _, reference = trains_as_one_device(build, use)
    history = reference.seen["history"]["loss"]
    assert all(0 < loss < np.inf for loss in history), "one device must not diverge"
