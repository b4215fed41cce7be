"""What really travels while a step runs, counted as it is executed and not as it is traced."""

import collections

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.engines import TensorFlowEngine

pytestmark = pytest.mark.slow

PARAMETERS = 6 * 50 + 50 + 50 * 2 + 2
MICRO_BATCH_SCALARS = 8


@pytest.fixture
def executed(unsharded, monkeypatch):
    """For each rank the numbers of elements of the all-reduces that it executed."""
    counts = collections.defaultdict(list)
    original = TensorFlowEngine.all_reduce

    def counted(self, tensor, group):
        context = tf.distribute.get_replica_context()
        rank = int(tf.get_static_value(context.replica_id_in_sync_group))
        noted = tf.numpy_function(
            lambda size: counts[rank].append(int(size)), [tf.size(tensor)], [], stateful=True
        )
        with tf.control_dependencies([noted]):
            return original(self, tf.identity(tensor), group)

    monkeypatch.setattr(TensorFlowEngine, "all_reduce", counted)
    return counts


def train(optimizer, replicas, micro_batches):
    with harness.scope(replicas):
        model = keras.Sequential(
            [keras.Input([6]), keras.layers.Dense(50, "tanh"), keras.layers.Dense(2)]
        )
        model.compile(optimizer(), "mse")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * micro_batches, 6)).astype("float32")
    model.fit(x, x[:, :2], batch_size=8, epochs=1, verbose=0)
    return model


@pytest.mark.parametrize("wrap", ["plain", "loss scale"])
def test_gradients_travel_once_a_window_and_a_few_scalars_once_a_micro_batch(executed, wrap):
    def optimizer():
        inner = keras.optimizers.Adam(gradient_accumulation_steps=4, global_clipnorm=1.0)
        return inner if wrap == "plain" else keras.optimizers.LossScaleOptimizer(inner)

    train(optimizer, replicas=2, micro_batches=8)
    assert sorted(executed) == [0, 1]
    for sizes in executed.values():
        gradients = [size for size in sizes if size > MICRO_BATCH_SCALARS]
        scalars = [size for size in sizes if size <= MICRO_BATCH_SCALARS]
        assert gradients == [PARAMETERS, PARAMETERS]
        assert 0 < sum(scalars) <= 8 * MICRO_BATCH_SCALARS


def test_without_accumulation_gradients_travel_once_a_step(executed):
    train(lambda: keras.optimizers.Adam(clipnorm=1.0), replicas=3, micro_batches=5)
    assert sorted(executed) == [0, 1, 2]
    for sizes in executed.values():
        assert [size for size in sizes if size > MICRO_BATCH_SCALARS] == 5 * [PARAMETERS]


def test_all_statistics_of_a_step_travel_together_with_the_loss(executed):
    with harness.scope(2):
        model = keras.Sequential(
            [keras.Input([6])]
            + [keras.layers.BatchNormalization(center=False, scale=False) for _ in range(5)]
            + [keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    model.fit(np.ones([16, 6], "float32"), np.ones([16, 1], "float32"), batch_size=8, verbose=0)
    for sizes in executed.values():
        assert [size for size in sizes if size > MICRO_BATCH_SCALARS] == 2 * [5 * 2 * 6 + 2]
