"""Rows of tables that do not depend on the batch: one device's gradient has them once."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

from tfdp.keras_adapter.gradients import sparse_rows

LENGTHS = (3, 4)


class Reads(layers.Layer):
    """Embeds words, and adds what tables hold for positions and at constant places."""

    def build(self, shape):
        names = ("words", "positions", "of each", "constants")
        self.tables = [self.add_weight(shape=(8, 3), name=name) for name in names]

    def call(self, x):
        words, positions, of_each, constants = (table.value for table in self.tables)
        examples, length = tf.shape(x)[0], tf.shape(x)[1]
        repeated = tf.tile(tf.range(length)[tf.newaxis], [examples, 1])
        return (
            tf.gather(words, x)
            + tf.gather(positions, 7 - 2 * tf.range(length))
            + tf.gather(of_each, repeated)
            + tf.reduce_sum(tf.gather(constants, [0, 3, 3]), axis=0)
        )


def model_with(**options):
    def build():
        model = keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                Reads(),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.05), "mse", **options)
        return model

    return build


def fit_in(sizes, **options):
    """A function that fits batches of these numbers of examples, whose lengths differ."""
    rng = np.random.default_rng(2)
    batches = [
        (rng.integers(0, 8, [size, LENGTHS[i % 2]], "int32"), rng.normal(size=[size, 1]))
        for i, size in enumerate(sizes)
    ]
    specs = (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
    data = data.apply(tf.data.experimental.assert_cardinality(len(sizes)))
    return lambda model: model.fit(data, verbose=0).history


@pytest.mark.parametrize("options", tiers.first_of({}, {"run_eagerly": True}), ids=str)
def test_rows_are_summed_in_their_places(options, trains_as_one_device):
    trains_as_one_device(model_with(**options), fit_in([4, 3, 7]))


def test_in_batches_of_one_size_repeated_rows_are_each_example_s(
    replicas, trains_as_one_device, caplog
):
    x, y = np.arange(24 * replicas).reshape(-1, 4) % 8, np.ones([6 * replicas, 1])

    def fit(model):
        data = tf.data.Dataset.from_tensor_slices((x, y))
        model.fit(data.batch(2 * replicas, drop_remainder=True), verbose=0)

    trains_as_one_device(model_with(), fit)
    assert not [r.getMessage() for r in caplog.records if "repeated for each" in r.getMessage()]


def test_rows_at_places_that_replicas_do_not_share_are_refused():
    def gathered(*indices):
        return tf.IndexedSlices(tf.ones([3, 1]), tf.constant(indices), tf.constant([8, 1]))

    summed = sparse_rows._in_places(gathered([5, 0], [6, 1], [5, 0]))
    assert summed.indices.numpy().tolist() == [5, 6]
    assert summed.values.numpy().tolist() == [[2.0], [1.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be the same on all replicas"):
        sparse_rows._in_places(gathered([5, 0], [6, 1], [4, 0]))


def test_a_row_of_its_own_for_each_replica(replicas):
    strategy = harness.strategy(replicas)
    with strategy.scope():
        table = tf.Variable(tf.ones([replicas, 2]))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([table])

    def step():
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            loss = tf.cast(rank + 1, tf.float32) * tf.reduce_sum(tf.gather(table, [rank]))
        optimizer.apply(tape.gradient(loss, [table]), [table])

    tf.function(lambda: strategy.run(step))()
    expected = 1 - 0.1 * (1 + np.arange(replicas))
    for copy in harness.components(table):
        np.testing.assert_allclose(copy, np.stack([expected, expected], axis=1), rtol=1e-6)
