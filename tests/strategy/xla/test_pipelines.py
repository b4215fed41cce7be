"""A `tfdp.data.pipeline` feeds XLAStrategy what it feeds one device, wherever epochs end."""

import keras
import numpy as np
import pytest
import tiers

import tfdp


def trained(strategy, steps_per_execution, steps_per_epoch):
    """Returns the losses of training and validation, and the weights."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=[44, 4]).astype("float32")
    y = rng.normal(size=[44, 2]).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps_per_execution)
    history = model.fit(
        tfdp.data.pipeline((x, y), 8, seed=1),
        epochs=3,
        steps_per_epoch=steps_per_epoch,
        validation_data=tfdp.data.pipeline((x, y), 8, seed=2, shuffle=False),
        verbose=0,
    )
    return *history.history["loss"], *history.history["val_loss"], *model.get_weights()


@pytest.mark.parametrize(
    ("steps_per_execution", "steps_per_epoch"),
    tiers.cases([(1, None), (1, 4), (2, None), (2, 4)], [(1, None), (2, 4)]),
)
def test_batches_are_those_of_one_device(on_devices, steps_per_execution, steps_per_epoch):
    one = tfdp.DataParallelStrategy(devices=["CPU:0"])
    expected = trained(one, steps_per_execution, steps_per_epoch)
    found = trained(on_devices(2), steps_per_execution, steps_per_epoch)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
