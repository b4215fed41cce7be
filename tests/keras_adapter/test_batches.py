"""Partial, uneven and empty shares of a batch, wherever they occur."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

SIZES = [[3, 8, 1, 5], [1, 6, 2], [8, 8, 7]]


@pytest.mark.telling
@harness.in_sizes_and_replicas(*SIZES)
def test_batches_of_any_sizes_train_as_on_one_device(sizes, trains_as_one_device):
    data = harness.regression_data(sum(sizes))
    use = harness.fit_datasets(
        lambda: harness.batches_of(sizes, *data), then=["evaluate", "predict"]
    )
    trains_as_one_device(harness.dense_model, use)


@pytest.mark.exhaustive("test_batches_of_any_sizes_train_as_on_one_device")
@harness.on_three_and_four_replicas
def test_a_partial_last_batch_of_arrays_trains_as_on_one_device(trains_as_one_device):
    x, y = harness.regression_data(21)

    def use(model):
        return {
            "history": harness.fit_arrays(model, x, y),
            "evaluate": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
            "predict": model.predict(x, batch_size=8, verbose=0),
        }

    trains_as_one_device(harness.dense_model, use)


@pytest.mark.exhaustive("test_batches_of_any_sizes_train_as_on_one_device")
def test_a_dropped_remainder_trains_as_on_one_device(trains_as_one_device):
    data = harness.regression_data(22)

    def make():
        return tf.data.Dataset.from_tensor_slices(data).batch(8, drop_remainder=True)

    trains_as_one_device(
        harness.dense_model, harness.fit_datasets(make, then=["evaluate", "predict"])
    )


@pytest.mark.parametrize("batch_size", [4, 8])
def test_predict_returns_every_row_in_order(batch_size, replicas):
    def build():
        inputs = keras.Input((2,))
        return keras.Model(inputs, keras.layers.Identity()(inputs))

    x = np.arange(26, dtype="float32").reshape(13, 2)
    model = harness.build_in_scope(build, replicas)
    np.testing.assert_array_equal(model.predict(x, batch_size=batch_size, verbose=0), x)
    uneven = model.predict(harness.batches_of([1, 7, 2, 3], x), verbose=0)
    np.testing.assert_array_equal(uneven, x)


def weighted(kind, y):
    rng = np.random.default_rng(3)
    if kind == "random":
        return rng.uniform(0.1, 5.0, len(y)).astype("float32")
    weights = np.ones(len(y), "float32")
    weights[:4] = 0.0  # the first batch's first shares have no weight at all
    weights[9] = 50.0
    return weights


@pytest.mark.parametrize("kind", tiers.first_of("random", "zero on a replica"))
def test_sample_weights_count_as_on_one_device(kind, trains_as_one_device):
    x, y = harness.regression_data(17)
    weights = weighted(kind, y)

    def build():
        return harness.dense_model(metrics=(), weighted_metrics=["mae"])

    def use(model):
        sizes = [8, 3, 1, 5]
        history = model.fit(harness.batches_of(sizes, x, y, weights), epochs=2, verbose=0).history
        evaluate = model.evaluate(
            x, y, sample_weight=weights, batch_size=8, verbose=0, return_dict=True
        )
        return {"history": history, "evaluate": evaluate}

    trains_as_one_device(build, use)


def test_class_weights_count_as_on_one_device(trains_as_one_device):
    x, y = harness.regression_data(21)
    labels = np.digitize(y[:, 0], [-0.5, 0.5]).astype("int32")

    def build():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation="softmax")])
        model.compile(
            keras.optimizers.SGD(0.2), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return model

    def use(model):
        return harness.fit_arrays(model, x, labels, class_weight={0: 0.2, 1: 1.0, 2: 7.0})

    trains_as_one_device(build, use)


def sequences(examples=21, steps=6):
    """Sequences of token ids, padded with zeros, of very different lengths; targets for each."""
    rng = np.random.default_rng(5)
    ids = rng.integers(1, 9, (examples, steps)).astype("int32")
    lengths = np.where(np.arange(examples) % 8 < 3, 1, rng.integers(2, steps + 1, examples))
    ids[np.arange(steps) >= lengths[:, None]] = 0
    return ids, rng.normal(size=(examples, steps, 1)).astype("float32")


def embedding_mask():
    return [
        keras.Input((6,), dtype="int32"),
        keras.layers.Embedding(9, 3, mask_zero=True),
        keras.layers.Dense(1),
    ]


def masking_layer():
    return [
        keras.Input((6,), dtype="int32"),
        keras.layers.Rescaling(1.0),
        keras.layers.Reshape((6, 1)),
        keras.layers.Masking(),
        keras.layers.Dense(1),
    ]


@pytest.mark.parametrize(
    ("layers", "weights"),
    tiers.first_of((embedding_mask, False), (masking_layer, True)),
    ids=["of an embedding", "of a layer, weighted"],
)
def test_masks_count_as_on_one_device(layers, weights, trains_as_one_device):
    ids, targets = sequences()
    # One weight per step: Keras multiplies a mask by nothing smaller.
    each = np.linspace(0.1, 4.0, ids.size).reshape(ids.shape).astype("float32")
    sample_weight = each if weights else None

    def build():
        model = keras.Sequential(layers())
        model.compile(keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
        return model

    def use(model):
        history = harness.fit_arrays(model, ids, targets, sample_weight=sample_weight)
        return {
            "history": history,
            "evaluate": model.evaluate(ids, targets, batch_size=8, verbose=0, return_dict=True),
        }

    trains_as_one_device(build, use)


def test_a_batch_that_is_masked_out_on_one_replica_trains_as_on_one_device(trains_as_one_device):
    ids, targets = sequences(8)
    ids[:4] = 0

    def build():
        model = keras.Sequential(embedding_mask())
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, ids, targets))
