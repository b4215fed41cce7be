"""Partial, uneven and empty shares of a batch, wherever they occur."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

import tfdp

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


@pytest.mark.parametrize("batch_size", tiers.first_of(4, 8))
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


def labelled():
    """A model of three classes, and examples with labels."""

    def build():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation="softmax")])
        model.compile(
            keras.optimizers.SGD(0.2), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return model

    x, y = harness.regression_data(24)
    return build, x, np.digitize(y[:, 0], [-0.5, 0.5]).astype("int32")


CLASS_WEIGHTS = {0: 0.2, 1: 1.0, 2: 7.0}


def test_class_weights_count_as_on_one_device(trains_as_one_device):
    build, x, labels = labelled()

    def use(model):
        return harness.fit_arrays(model, x, labels, class_weight=CLASS_WEIGHTS)

    trains_as_one_device(build, use)


def of_unknown_number(dataset):
    """Batches, of which Keras counts one more than there are on any number of replicas."""
    return dataset.batch(12).filter(lambda *batch: True)


def distributed(strategy, dataset):
    return strategy.experimental_distribute_dataset(of_unknown_number(dataset))


def of_processes(strategy, dataset):
    """Each process reads the elements of its own replicas: of global batches of 12."""

    def own(context):
        every, pipelines = context.num_replicas_in_sync, context.num_input_pipelines
        numbered = (
            dataset.batch(12 // every)
            .enumerate()
            .filter(
                lambda index, _: index * pipelines // every % pipelines == context.input_pipeline_id
            )
        )
        return numbered.map(lambda _, element: element)

    return strategy.distribute_datasets_from_function(own)


@pytest.mark.parametrize(
    ("data", "replicas"),
    tiers.first_of(
        (distributed, harness.THREE),
        *((distributed, count) for count in (1, 2)),
        *((of_processes, count) for count in (1, 2, 3)),
    ),
)
def test_class_weights_count_for_data_that_are_distributed_already(data, trains_as_one_device):
    build, *columns = labelled()
    dataset = tf.data.Dataset.from_tensor_slices(tuple(columns))
    both = dataset.map(lambda x, y: (x, y, 2.0))

    def use(model):
        strategy = model.distribute_strategy

        def batches(dataset):
            given = isinstance(strategy, tfdp.DataParallelStrategy)
            return data(strategy, dataset) if given else of_unknown_number(dataset)

        given = {"epochs": 2, "verbose": 0, "shuffle": False, "class_weight": CLASS_WEIGHTS}
        with pytest.raises(ValueError, match="`class_weight` and `sample_weight` at the same time"):
            model.fit(batches(both), **given)
        once = batches(dataset)
        return [model.fit(once, **given).history for _ in range(2)]

    trains_as_one_device(build, use, one_device_eagerly=False)


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
