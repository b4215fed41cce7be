"""`jit_compile=True`: forward and backward compile under XLA; the result is one device's."""

import harness
import keras
import numpy as np
import pytest
import tiers
from keras import layers, ops, optimizers


class AddsLoss(layers.Layer):
    """Adds a mean over its batch."""

    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


def dense(optimizer=None):
    return lambda: harness.dense_model(optimizer() if optimizer else None, jit_compile=True)


def adding_a_loss():
    model = keras.Sequential([keras.Input((5,)), layers.Dense(4), AddsLoss(), layers.Dense(1)])
    model.compile(optimizers.SGD(0.1), loss="mse", metrics=["mae"], jit_compile=True)
    return model


def normalized():
    normalization = layers.BatchNormalization()
    model = keras.Sequential([keras.Input((5,)), normalization, layers.Dense(1)])
    model.compile(optimizers.SGD(0.1), loss="mse", jit_compile=True)
    return model


MODELS = {
    "plain": dense(),
    "accumulation and clipping": dense(
        lambda: optimizers.Adam(0.05, global_clipnorm=0.3, gradient_accumulation_steps=4)
    ),
    "a loss scale": dense(
        lambda: optimizers.LossScaleOptimizer(
            optimizers.SGD(0.1, clipnorm=0.3), initial_scale=64.0, dynamic_growth_steps=2
        )
    ),
    "add_loss": adding_a_loss,
    "synchronized normalization": normalized,
}


@pytest.mark.parametrize("kind", tiers.cases(MODELS, ["synchronized normalization"]))
def test_a_compiled_step_trains_as_on_one_device(kind, trains_as_one_device):
    x, y = harness.regression_data(21)

    def use(model):
        assert model.jit_compile is True
        return {
            "history": harness.fit_arrays(model, x, y),
            "evaluate": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
            "predict": model.predict(x, batch_size=8, verbose=0),
        }

    trains_as_one_device(MODELS[kind], use)


@pytest.mark.exhaustive("test_a_compiled_step_trains_as_on_one_device")
@pytest.mark.slow
def test_a_compiled_step_counts_masks_as_on_one_device(trains_as_one_device):
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 9, (21, 6)).astype("int32")
    ids[np.arange(6) >= np.where(np.arange(21) % 8 < 4, 1, 5)[:, None]] = 0
    targets = rng.normal(size=(21, 6, 1)).astype("float32")

    def build():
        model = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(9, 3, mask_zero=True),
                layers.Dense(1),
            ]
        )
        model.compile(optimizers.SGD(0.1), loss="mse", metrics=["mae"], jit_compile=True)
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, ids, targets))


@pytest.mark.exhaustive("test_a_compiled_step_trains_as_on_one_device")
def test_a_compiled_step_takes_batches_of_any_size(trains_as_one_device):
    sizes = [3, 8, 1, 5]
    arrays = harness.regression_data(sum(sizes))
    use = harness.fit_datasets(lambda: harness.batches_of(sizes, *arrays))
    trains_as_one_device(dense(), use)
