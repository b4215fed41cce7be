"""`jit_compile=True`: forward and backward compile under XLA; the result is one device's."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
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
}


@pytest.mark.parametrize("kind", tiers.cases(MODELS, ["plain"]))
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


@pytest.mark.slow
@pytest.mark.parametrize("compiles", [True, False])
def test_the_update_of_the_variables_is_compiled_if_the_model_asks_for_it(unsharded, compiles):
    traced_in = set()

    class Told(optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            traced_in.add(tf.compat.v1.get_default_graph().name)
            super().update_step(gradient, variable, learning_rate)

    def build():
        return harness.dense_model(Told(0.1), jit_compile=compiles)

    harness.fit_arrays(harness.build_in_scope(build, 2))
    assert (traced_in == {"compiled_update"}) == compiles


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


@pytest.mark.parametrize("replicas", [2], ids=["2-replicas"])
def test_a_compiled_synchronized_normalization_says_how_to_mend_it(replicas):
    def build():
        model = keras.Sequential(
            [keras.Input((5,)), layers.BatchNormalization(synchronized=True), layers.Dense(1)]
        )
        model.compile("sgd", loss="mse", jit_compile=True)
        return model

    with pytest.raises((ValueError, RuntimeError)) as raised:
        model = harness.build_in_scope(build, replicas)
        harness.fit_arrays(model)
    message = str(raised.value)
    assert "synchronized" in message
    assert "BatchNormalization" in message
    assert "jit_compile=False" in message
