"""Every kind of input Keras takes: nothing is lost, reordered or read twice."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers
from replica_counts import DEVICE

X, Y = harness.regression_data(29)
SIZES = [8, 8, 8, 5]


def chunks():
    ends = np.cumsum(SIZES)
    return [(X[e - s : e], Y[e - s : e]) for s, e in zip(SIZES, ends, strict=True)]


class Chunks(keras.utils.PyDataset):
    """The same batches as a `PyDataset`."""

    def __len__(self):
        return len(SIZES)

    def __getitem__(self, index):
        return chunks()[index]


def forever():
    while True:
        yield from chunks()


def dataset(batch_size=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


def shuffled():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(29, seed=3).batch(8)


# What `fit` is given; each is made afresh for each model.
FEEDS = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 8, "shuffle": False, "epochs": 2},
    "shuffled arrays": lambda: {"x": X, "y": Y, "batch_size": 8, "epochs": 2},
    "a dataset": lambda: {"x": dataset(), "epochs": 2},
    "a shuffled dataset": lambda: {"x": shuffled(), "epochs": 2},
    "a PyDataset": lambda: {"x": Chunks(), "shuffle": False, "epochs": 2},
    "a finite generator": lambda: {"x": (c for c in chunks())},
    "an endless generator": lambda: {"x": forever(), "steps_per_epoch": 3, "epochs": 3},
    "a repeated dataset": lambda: {"x": dataset().repeat(), "steps_per_epoch": 3, "epochs": 2},
    "validation arrays": lambda: {
        "x": X[:16], "y": Y[:16], "batch_size": 8, "shuffle": False, "epochs": 2,
        "validation_data": (X[16:], Y[16:]),
    },
    "a validation dataset": lambda: {
        "x": dataset(), "validation_data": dataset(5), "validation_steps": 4, "epochs": 2,
    },
    "a validation split": lambda: {
        "x": X, "y": Y, "batch_size": 8, "shuffle": False, "validation_split": 0.3,
    },
}  # fmt: skip


def test_every_feed_trains_as_on_one_device(trains_as_one_device):
    """One model and one trace, put back to its beginning for each feed."""

    def use(model):
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        start = [variable.numpy() for variable in variables]
        seen = {}
        for name, make in FEEDS.items():
            for variable, value in zip(variables, start, strict=True):
                variable.assign(value)
            history = model.fit(verbose=0, **make()).history
            seen[name] = {"history": history, "weights": harness.weights(model)}
        return seen

    trains_as_one_device(harness.dense_model, use)


@pytest.mark.skipif(
    DEVICE == "GPU", reason="there what one device has done depends on who is faster, host or GPU"
)
@pytest.mark.parametrize(
    ("make_optimizer", "steps"),
    [
        (lambda: keras.optimizers.Adam(0.01), 1),
        *(
            pytest.param(make, steps, marks=pytest.mark.exhaustive)
            for make, steps in (
                (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)), 1),
                (
                    lambda: keras.optimizers.SGD(
                        keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
                    ),
                    3,
                ),
            )
        ),
    ],
    ids=["Adam", "loss scale", "schedule, 3 steps an execution"],
)
def test_the_step_that_finds_no_batch_left_counts_as_on_one_device(
    make_optimizer, steps, trains_as_one_device
):
    def build():
        model = harness.dense_model()
        model.compile(make_optimizer(), "mse", steps_per_execution=steps)
        return model

    def use(model):
        signature = (tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1)))
        histories, per_epoch = [], len(SIZES) + isinstance(model.optimizer, keras.optimizers.Adam)
        for epochs in (1, 2):
            counted = epochs * per_epoch
            data = tf.data.Dataset.from_generator(
                lambda counted=counted: harness.ends_late(model, chunks(), counted),
                output_signature=signature,
            )
            histories.append(model.fit(data, verbose=0).history)
        return histories

    # What a step does before it finds no batch is in its graph alone.
    trains_as_one_device(build, use, one_device_eagerly=False)


@pytest.mark.parametrize("method", tiers.first_of("fit", "predict", "evaluate"))
def test_no_element_is_drawn_only_to_learn_its_shape(method, replicas):
    drawn = []

    def generate():
        for chunk in chunks():
            drawn.append(len(chunk[0]))
            yield chunk

    signature = (tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    model = harness.build_in_scope(harness.dense_model, replicas)
    getattr(model, method)(data, verbose=0)
    assert drawn == SIZES


def test_a_finite_generator_loses_no_batch(replicas):
    steps, drawn = [], []

    def generate():
        for chunk in chunks():
            drawn.append(len(chunk[0]))
            yield chunk

    model = harness.build_in_scope(harness.dense_model, replicas)
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(batch)
    )
    model.fit(generate(), callbacks=[count], verbose=0)
    assert len(steps) == len(SIZES)
    assert drawn == SIZES


def of_every_dtype():
    """Floats, integers, strings, text, booleans and bytes side by side, each through its layer."""
    inputs = {
        "floats": keras.Input((5,), name="floats"),
        "integers": keras.Input((2,), name="integers", dtype="int32"),
        "words": keras.Input((1,), name="words", dtype="string"),
        "text": keras.Input((1,), name="text", dtype="string"),
        "flags": keras.Input((5,), name="flags", dtype="bool"),
        "bytes": keras.Input((5,), name="bytes", dtype="uint8"),
    }
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue"])
    vectorize = layers.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=4)
    hidden = [
        inputs["floats"],
        layers.Rescaling(0.1)(inputs["integers"]),
        layers.Flatten()(layers.Embedding(4, 3)(lookup(inputs["words"]))),
        layers.Flatten()(layers.Embedding(5, 3)(vectorize(inputs["text"]))),
        layers.Lambda(lambda flags: keras.ops.cast(flags, "float32"))(inputs["flags"]),
        layers.Rescaling(1 / 255)(inputs["bytes"]),
    ]
    words = np.array([["red"], ["green"], ["blue"], ["pink"]])[np.arange(29) % 4]
    text = np.array([["a b c"], ["b"], ["c c a b a"], ["x"]])[np.arange(29) % 4]
    data = {
        "floats": X,
        "integers": np.arange(58, dtype="int32").reshape(29, 2),
        "words": tf.constant(words),
        "text": tf.constant(text),
        "flags": X > 0,
        "bytes": np.uint8(np.abs(X) * 40),
    }
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(hidden))), data


def of_ragged():
    class MeanOfRows(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, rows):
            return self.dense(tf.reduce_mean(rows, axis=1)[:, None])

    lengths = np.arange(29) % 4 + 1
    return MeanOfRows(), tf.RaggedTensor.from_row_lengths(np.resize(X, lengths.sum()), lengths)


@pytest.mark.parametrize("kind", [of_every_dtype, of_ragged])
def test_inputs_of_every_kind_train_as_on_one_device(kind, trains_as_one_device):
    def build():
        model, _ = kind()
        model.compile(keras.optimizers.SGD(0.02), loss="mse")
        return model

    def use(model):
        _, inputs = kind()
        data = tf.data.Dataset.from_tensor_slices((inputs, Y)).batch(8)
        history = model.fit(data, epochs=2, verbose=0).history
        return {"history": history, "predict": model.predict(data, verbose=0)}

    trains_as_one_device(build, use)


@pytest.mark.parametrize("sizes", tiers.first_of([8, 3, 1, 5], [1, 8]))
def test_single_batches_of_any_size_give_one_devices_logs(sizes, trains_as_one_device):
    def use(model):
        seen = []
        for size in sizes:
            x, y, weights = X[:size], Y[:size], np.linspace(0.5, 2.0, size, dtype="float32")
            seen += [
                model.train_on_batch(x, y, return_dict=True),
                model.train_on_batch(x, y, sample_weight=weights),
                model.test_on_batch(x, y, return_dict=True),
                model.predict_on_batch(x),
            ]
        return seen

    trains_as_one_device(harness.dense_model, use)


@pytest.mark.parametrize("steps", tiers.first_of(2, 3, 7))
def test_steps_per_execution_need_not_divide_the_epoch(steps, trains_as_one_device):
    x, y = harness.regression_data(53)  # seven batches, the last one partial

    def use(model):
        seen = []
        record = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs)))
        )
        history = harness.fit_arrays(model, x, y, batch_size=8, callbacks=[record])
        return {
            "history": history,
            "batches": [batch for batch, _ in seen],
            "logs": [{n: float(v) for n, v in values.items()} for _, values in seen],
            "evaluate": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
            "predict": model.predict(x, batch_size=8, verbose=0),
        }

    trains_as_one_device(lambda: harness.dense_model(steps_per_execution=steps), use)
