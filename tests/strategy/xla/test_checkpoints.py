"""`Checkpoint` under XLAStrategy: a training that was ended goes on with the same bits."""

import keras
import numpy as np
import pytest
import tiers

import tfdp


class Ends(keras.callbacks.Callback):
    """Ends a training in the midst of an epoch and of an accumulation, as a signal does."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 8:
            raise KeyboardInterrupt


def training(strategy):
    """Returns a model with all kinds of state, and its data."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([16]),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01, use_ema=True, gradient_accumulation_steps=2),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    x, y = rng.normal(size=[96, 16]).astype("float32"), rng.integers(0, 10, [96])
    return model, tfdp.data.pipeline((x, y), 32, seed=1)


def states(model):
    return [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]


def fitted(strategy, folder, *callbacks):
    model, batches = training(strategy)
    kept = tfdp.callbacks.Checkpoint(folder, every_steps=7)
    model.fit(batches, epochs=4, callbacks=[kept, *callbacks], verbose=0)
    return states(model)


@pytest.fixture(scope="module")
def never_ended(tmp_path_factory):
    """What a training leaves that goes to its end."""
    jax = pytest.importorskip("jax")
    return fitted(tfdp.XLAStrategy(jax.devices()[:4]), tmp_path_factory.mktemp("whole"))


@pytest.fixture
def ended(on_devices, tmp_path):
    """The folder of the same training that was ended in its midst."""
    with pytest.raises(KeyboardInterrupt):
        fitted(on_devices(4), tmp_path, Ends())
    return tmp_path


def test_it_goes_on_with_the_bits_of_one_that_was_never_ended(on_devices, never_ended, ended):
    for expected, found in zip(never_ended, fitted(on_devices(4), ended), strict=True):
        np.testing.assert_array_equal(found, expected)


ON_A_MESH = {"mesh": {"batch": 2, "model": 4}, "layout_map": {"dense.*kernel": ("model", None)}}


@pytest.mark.parametrize(
    ("count", "options"), tiers.first_of((2, {"shard": "parameters"}), (8, ON_A_MESH))
)
def test_on_other_devices_it_goes_on_within_rounding_and_says_so(
    on_devices, never_ended, ended, caplog, count, options
):
    found = fitted(on_devices(count, **options), ended)
    for expected, each in zip(never_ended, found, strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-5)
    assert "devices were '4 x cpu' and are '2 " in caplog.text
