"""Data in every form that `fit` takes, and models with several inputs and outputs."""

import keras
import numpy as np
import tensorflow as tf
from foreign.data import BATCH_SIZE, CLASSES, FEATURES, LABELS, TARGETS, TOKENS, WORDS
from foreign.table import agrees
from keras import layers


def network(strategy, **compile_options):
    """A small network for features."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "tanh"), layers.Dense(1)])
        model.compile(keras.optimizers.Adam(1e-2), "mse", **compile_options)
    return model


class Batches(keras.utils.PyDataset):
    """Makes batches by hand, the last one short."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return FEATURES[rows], TARGETS[rows]


@agrees()
def py_dataset(strategy):
    """Reads a `PyDataset`, for training and for prediction."""
    model = network(strategy)
    history = model.fit(Batches(), epochs=2, shuffle=False, verbose=0)
    return model, history, model.predict(Batches(), verbose=0)


def endless():
    """Draws batches of seven and of eight for ever."""
    rng = np.random.default_rng(1)
    while True:
        for size in (7, 8):
            rows = rng.choice(len(FEATURES), size)
            yield FEATURES[rows], TARGETS[rows]


@agrees()
def generator(strategy):
    """Takes so many steps an epoch of a generator without an end."""
    model = network(strategy, metrics=["mae"])
    return model, model.fit(endless(), steps_per_epoch=2, epochs=2, verbose=0)


@agrees()
def ragged(strategy):
    """Reads text of many lengths as a ragged tensor."""
    lengths = np.maximum((TOKENS > 0).sum(1), 1)
    words = tf.RaggedTensor.from_tensor(TOKENS, lengths=lengths)
    data = tf.data.Dataset.from_tensor_slices((words, TARGETS)).ragged_batch(5).take(3)
    data = data.map(lambda x, y: (x.to_tensor(), y))
    with strategy.scope():
        inputs = keras.Input((None,), dtype="int32")
        x = layers.GlobalAveragePooling1D()(layers.Embedding(WORDS, 3, mask_zero=True)(inputs))
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model, model.fit(data, epochs=2, verbose=0)


@agrees()
def tickets(strategy):
    """The guide's model: several inputs and outputs by name, weighted, with weights of examples."""
    with strategy.scope():
        title = keras.Input((None,), dtype="int32", name="title")
        tags = keras.Input((4,), name="tags")
        x = layers.GlobalAveragePooling1D()(layers.Embedding(WORDS, 3)(title))
        x = layers.concatenate([x, tags])
        outputs = {
            "priority": layers.Dense(1, name="priority")(x),
            "department": layers.Dense(CLASSES, name="department")(x),
        }
        model = keras.Model([title, tags], outputs)
        model.compile(
            keras.optimizers.RMSprop(1e-2),
            loss={
                "priority": keras.losses.BinaryCrossentropy(from_logits=True),
                "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            },
            loss_weights={"priority": 1.0, "department": 0.2},
            weighted_metrics={"department": ["accuracy"], "priority": ["mse"]},
        )
    weights = {"priority": np.linspace(0, 1, 15), "department": np.linspace(2, 1, 15)}
    data = tf.data.Dataset.from_tensor_slices(
        (
            {"title": TOKENS, "tags": FEATURES},
            {"priority": (TARGETS > 0).astype("float32"), "department": LABELS},
            weights,
        )
    ).batch(BATCH_SIZE)
    return model, model.fit(data, epochs=2, verbose=0), model.predict(data, verbose=0)
