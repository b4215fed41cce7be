"""`tfdp.verify` of a strategy that compiles: one device is the first of its devices, compiled."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

RNG = np.random.default_rng(2)
BATCHES = [
    (RNG.random((rows, 4)).astype("float32"), RNG.random((rows, 1)).astype("float32"))
    for rows in (8, 5)
]


@pytest.fixture
def strategy():
    """A strategy on four devices."""
    jax = pytest.importorskip("jax")
    return tfdp.XLAStrategy(jax.devices()[:4])


def dropping():
    """Draws, batch statistics and metrics."""
    hidden = [keras.layers.Dense(6, "relu"), keras.layers.Dropout(0.3)]
    hidden += [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([4]), *hidden])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def scaled_by_devices():
    """What is right on one device alone: `build` asks for the number of replicas."""
    number = tf.distribute.get_strategy().num_replicas_in_sync
    scale = keras.layers.Rescaling(1 / number)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), scale])
    model.compile("sgd", "mse")
    return model


def test_a_right_program_passes(strategy):
    report = tfdp.verify(dropping, BATCHES, strategy=strategy).check()
    assert (report.replicas, report.steps) == (4, 3)
    seen = {difference.part for difference in report.agreeing}
    assert seen == {"loss", "weights", "layer state", "optimizer state", "metrics"}


def test_a_program_that_asks_for_replicas_is_found(strategy):
    report = tfdp.verify(scaled_by_devices, BATCHES, strategy=strategy)
    assert report.parted[0].part == "loss"
    assert report.parted[0].step == 1
    assert "`tfdp.DataParallelStrategy` names the layer" in report.reason
    # The oracle: what the first step's loss is.
    losses = []
    for scope in (strategy.extended.of_one_device().scope(), strategy.scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = scaled_by_devices()
        losses.append(model.train_on_batch(*BATCHES[0]))
    expected = abs(losses[1] - losses[0]) / abs(losses[0])
    assert report.parted[0].size == pytest.approx(expected, rel=1e-3)


def test_one_device_is_nothing_to_compare(strategy):
    with pytest.raises(ValueError, match="JAX_NUM_CPU_DEVICES=2"):
        tfdp.verify(dropping, BATCHES, strategy=strategy.extended.of_one_device())


def test_devices_of_several_processes_are_refused(strategy, monkeypatch):
    processes = types.SimpleNamespace(world_size=2)
    monkeypatch.setattr(strategy.extended, "processes", processes)
    with pytest.raises(ValueError, match=r"2 processes share them.*JAX_NUM_CPU_DEVICES=4"):
        tfdp.verify(dropping, BATCHES, strategy=strategy)


def test_a_strategy_of_others_is_refused():
    with pytest.raises(TypeError, match=r"`tfdp\.XLAStrategy`.*'OneDeviceStrategy'"):
        tfdp.verify(dropping, BATCHES, strategy=tf.distribute.OneDeviceStrategy("/cpu:0"))
