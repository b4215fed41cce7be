"""An error in the data is raised, whatever the source, the number of devices and the place."""

import contextlib

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

import tfdp
import tfdp.keras

tfdp.keras.install()  # on one device no strategy does it

X, Y = harness.regression_data(40)
SIGNATURE = (tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1)))
BOOM = "the fourth batch is broken"


def batch(index):
    """One of five batches, of which the fourth cannot be had."""
    if index == 3:
        raise ValueError(BOOM)
    return X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]


def generator():
    yield from map(batch, range(5))


def from_generator():
    return tf.data.Dataset.from_generator(generator, output_signature=SIGNATURE)


def of_declared_length():
    return from_generator().apply(tf.data.experimental.assert_cardinality(5))


class Batches(keras.utils.PyDataset):
    """The batches by index."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return batch(index)


def checked(x, y):
    broken = tf.reduce_all(x == X[31])
    with tf.control_dependencies([tf.debugging.Assert(~broken, [BOOM])]):
        return tf.identity(x), y


def mapped(examples=40):
    data = tf.data.Dataset.from_tensor_slices((X[:examples], Y[:examples])).map(checked)
    return data.batch(8)


def in_the_last_batch():
    return mapped(32)


def repeated():
    return mapped().repeat()


def from_a_function(model):
    strategy = model.distribute_strategy
    return strategy.distribute_datasets_from_function(
        lambda context: mapped().unbatch().batch(4, drop_remainder=True)
    )


def a_pipeline():
    return tfdp.data.pipeline((X, Y), 8, seed=1, map_fn=checked)


SOURCES = [
    generator,
    from_generator,
    of_declared_length,
    Batches,
    mapped,
    in_the_last_batch,
    repeated,
    from_a_function,
    a_pipeline,
]


def made(source, model):
    return source(model) if source is from_a_function else source()


def fit(model, source):
    options = {"steps_per_epoch": 4, "epochs": 2} if source is repeated else {}
    model.fit(made(source, model), verbose=0, **options)


def evaluate(model, source):
    model.evaluate(made(source, model), verbose=0, steps=4 if source is repeated else None)


def validate(model, source):
    model.fit(
        X, Y, batch_size=20, validation_data=made(source, model), verbose=0,
        validation_steps=4 if source is repeated else None,
    )  # fmt: skip


def predict(model, source):
    model.predict(made(source, model), verbose=0, steps=4 if source is repeated else None)


@contextlib.contextmanager
def raises():
    # TensorFlow's words for what Python raised, and its own for what its operations did.
    with pytest.raises((ValueError, tf.errors.OpError), match=BOOM):
        yield


def raises_everywhere(model, sources):
    for source in sources:
        with raises():
            fit(model, source)
    for use in (evaluate, validate, predict):
        with raises():
            use(model, in_the_last_batch)
    # Nothing is broken for what comes after.
    model.fit(X, Y, batch_size=8, verbose=0)


@harness.in_one_process
@pytest.mark.parametrize("replicas", tiers.first_of(2, 4))
def test_an_error_in_the_data_is_raised(replicas):
    raises_everywhere(harness.build_in_scope(harness.dense_model, replicas), SOURCES)


@pytest.mark.exhaustive("test_an_error_in_the_data_is_raised")
@harness.in_one_process
def test_an_error_in_the_data_is_raised_among_several_steps(replicas):
    model = harness.build_in_scope(lambda: harness.dense_model(steps_per_execution=3), replicas)
    raises_everywhere(model, [repeated, from_a_function])


def broken_later(epochs):
    """Whole in the first epochs, then with the error."""
    begun = []

    def generate():
        begun.append(None)
        for index in range(5):
            yield batch(0 if index == 3 and len(begun) <= epochs else index)

    return tf.data.Dataset.from_generator(generate, output_signature=SIGNATURE)


@pytest.mark.exhaustive("test_an_error_in_the_data_is_raised")
@harness.in_one_process
def test_an_error_of_a_later_epoch_is_raised(replicas):
    model = harness.build_in_scope(harness.dense_model, replicas)
    seen = keras.callbacks.History()
    with pytest.raises(tf.errors.OpError, match=BOOM):
        model.fit(broken_later(2), epochs=4, verbose=0, callbacks=[seen])
    assert len(seen.epoch) == 2


@harness.in_one_process
@pytest.mark.parametrize("cut", [False, True], ids=["at an end", "in the middle"])
def test_a_corrupt_record_file_is_an_error(cut, tmp_path, replicas):
    path = tmp_path / "train.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in np.concatenate([X, Y], axis=1):
            writer.write(row.tobytes())
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 255
    path.write_bytes(content[: -5 if cut else None])

    def parsed(record):
        row = tf.reshape(tf.io.decode_raw(record, tf.float32), [6])
        return row[:5], row[5:]

    model = harness.build_in_scope(harness.dense_model, replicas)
    with pytest.raises(tf.errors.DataLossError, match=r"corrupted|truncated"):
        model.fit(tf.data.TFRecordDataset(str(path)).map(parsed).batch(8), verbose=0)


@harness.in_one_process
@pytest.mark.parametrize("in_graph", tiers.first_of(True, False), ids=["graph", "eager"])
def test_an_iterator_that_raised_an_error_gives_no_shares_of_two_batches(in_graph, replicas):
    strategy = harness.strategy(replicas)
    iterator = iter(strategy.experimental_distribute_dataset(mapped()))

    def rows(iterator):
        return strategy.run(lambda data: tf.shape(data[0])[0], args=(next(iterator),))

    step = tf.function(rows) if in_graph else rows
    for _ in range(3):
        step(iterator)
    with pytest.raises(tf.errors.InvalidArgumentError, match=BOOM):
        step(iterator)
    # Asked again and again, the devices would wait for each other.
    for _ in range(4):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Make a new one"):
            step(iterator)


@harness.in_one_process
@pytest.mark.parametrize("steps", tiers.first_of(2, 1))
def test_data_that_end_end_as_on_one_device(steps, trains_as_one_device):
    def use(model):
        data = tf.data.Dataset.from_generator(
            lambda: map(batch, [0, 1, 2]), output_signature=SIGNATURE
        )
        return model.fit(data, epochs=2, verbose=0).history

    # What a step does before it finds no batch is in its graph alone.
    trains_as_one_device(
        lambda: harness.dense_model(steps_per_execution=steps), use, one_device_eagerly=False
    )
