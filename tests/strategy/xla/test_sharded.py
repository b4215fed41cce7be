"""What is cut beside the batch changes memory and collectives, and no weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.strategy.xla import mesh_sharding


def trained(strategy, rows):
    """Returns a small convolutional network's weights after two steps, and its slots."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                keras.layers.Conv2D(8, 3),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(128, activation="tanh"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    x = rng.normal(size=[rows, 8, 8, 1]).astype("float32")
    model.fit(x, rng.integers(0, 10, [rows]), batch_size=rows, epochs=2, verbose=0)
    return model


@pytest.mark.parametrize("rows", tiers.first_of(30, 32, 7))
@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
def test_weights_and_slots_are_those_of_one_device(on_devices, shard, rows, monkeypatch):
    monkeypatch.setattr(mesh_sharding, "SMALLEST_SHARD", 64)
    one = trained(on_devices(1), rows)
    strategy = on_devices(8, shard=shard)
    model = trained(strategy, rows)
    weights, slots = model.trainable_variables, model.optimizer.variables[2:]
    on_chips = [[each.value._array for each in every] for every in (weights, slots)]
    for weight, of_weight, of_slot in zip(weights, *on_chips, strict=True):
        cut = weight.value.shape.num_elements() >= 64
        assert of_slot.is_fully_replicated is not cut
        assert of_weight.is_fully_replicated is not (cut and shard == "parameters")
    for expected, weight in zip(one.trainable_variables, weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5, rtol=0)
    assert "all-gather" in strategy.explain(model).collectives


def test_a_device_needs_less_memory(on_devices):
    def memory(**options):
        strategy = on_devices(8, **options)
        with strategy.scope():
            weight = tf.Variable(tf.zeros([512, 512]))
            slots = [tf.Variable(tf.zeros([512, 512]), trainable=False) for _ in range(4)]

        @strategy.partitioned
        def step(x):
            gradient = tf.linalg.matmul(x, x, transpose_a=True)
            for slot in slots:
                slot.assign(0.9 * slot + gradient)
            weight.assign_sub(tf.add_n([slot.value() for slot in slots]))

        step(tf.ones([8, 512]))
        return step.explain().memory_bytes

    assert memory() - memory(shard="optimizer") > 4 * 512 * 512 * 4 * 0.8  # seven eighths of slots
