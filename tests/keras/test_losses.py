"""Every reduction and every way to write a loss takes its mean over the global batch."""

import harness
import keras
import numpy as np
import pytest
import tiers
from keras import losses, ops

SIZES = [3, 8, 1, 5]
REDUCTIONS = ["sum", "sum_over_batch_size", "mean", "mean_with_sample_weight", "none", None]


def per_example(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


def scalar_mean(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred))


class Quartic(losses.Loss):
    """A user's loss, one value an example."""

    def call(self, y_true, y_pred):
        return ops.mean((y_true - y_pred) ** 4, axis=-1) * 0.1


class ScalarMean(losses.Loss):
    """A user's loss that takes the mean itself."""

    def call(self, y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred))


LOSSES = {
    "a name": "mae",
    "a function of one value an example": per_example,
    "a function of one scalar": scalar_mean,
    "a subclass": Quartic,
    "a subclass with a sum": lambda: Quartic(reduction="sum"),
    "a subclass of one scalar": ScalarMean,
}
FAST = {"a subclass"}


def build(loss):
    """Small steps: a sum over the batch is a large loss."""
    return harness.dense_model(keras.optimizers.SGD(0.02), loss=loss)


def uneven_fit(*arrays):
    return harness.fit_datasets(lambda: harness.batches_of(SIZES, *arrays), then=["evaluate"])


@pytest.mark.telling
@pytest.mark.parametrize("weights", tiers.first_of(False, True), ids=["plain", "weighted"])
@pytest.mark.parametrize(
    "reduction",
    tiers.cases(REDUCTIONS, ["sum"]),
)
def test_every_reduction_is_over_the_global_batch(reduction, weights, trains_as_one_device):
    x, y = harness.regression_data(sum(SIZES))
    scale = np.linspace(0.1, 4.0, len(x)).astype("float32")
    arrays = (x, y, scale) if weights else (x, y)

    def fit(model):
        history = model.fit(harness.batches_of(SIZES, *arrays), epochs=2, verbose=0).history
        evaluate = model.evaluate(harness.batches_of(SIZES, *arrays), verbose=0, return_dict=True)
        return {"history": history, "evaluate": evaluate}

    trains_as_one_device(lambda: build(losses.MeanSquaredError(reduction=reduction)), fit)


@pytest.mark.parametrize("kind", tiers.cases(LOSSES, FAST))
def test_a_loss_of_any_form_is_the_global_batchs(kind, trains_as_one_device):
    made = LOSSES[kind]
    if isinstance(made, type) or "sum" in kind:
        made = made()
    trains_as_one_device(lambda: build(made), uneven_fit(*harness.regression_data(sum(SIZES))))


def test_several_outputs_with_loss_weights_train_as_on_one_device(trains_as_one_device):
    x, y = harness.regression_data(21)

    def several():
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(4, activation="tanh")(inputs)
        outputs = {
            "a": keras.layers.Dense(1, name="a")(hidden),
            "b": keras.layers.Dense(1, name="b")(hidden),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.SGD(0.1),
            loss={"a": "mse", "b": scalar_mean},
            loss_weights={"a": 0.3, "b": 2.0},
            metrics={"a": ["mae"], "b": ["mse"]},
        )
        return model

    def use(model):
        history = harness.fit_arrays(model, x, {"a": y, "b": -y})
        return {"history": history, "predict": model.predict(x, batch_size=8, verbose=0)}

    trains_as_one_device(several, use)


@pytest.fixture
def float64():
    """Everything that Keras makes is of float64: layers, losses, metrics."""
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


@pytest.mark.exhaustive("test_every_reduction_is_over_the_global_batch")
@pytest.mark.parametrize("replicas", [3], ids=harness.count_id)
@pytest.mark.parametrize(
    "kind", ["sum_over_batch_size", "sum", "mean_with_sample_weight", "masked"]
)
def test_losses_of_float64_stay_as_precise(kind, float64, trains_as_one_device):
    reduction = "sum_over_batch_size" if kind == "masked" else kind
    x = np.random.default_rng(0).normal(size=(sum(SIZES), 4, 3))
    y, weight = np.sin(x.sum(-1, keepdims=True)), np.linspace(0.1, 4.0, x[..., 0].size)
    if kind == "masked":
        x[1:9:2, 2:] = 0.0

    def build_in_float64():
        keras.config.set_dtype_policy("float64")
        model = keras.Sequential(
            [
                keras.Input((4, 3)),
                *([keras.layers.Masking()] if kind == "masked" else []),
                keras.layers.Dense(5, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.02), loss=losses.MeanSquaredError(reduction=reduction)
        )
        return model

    outcome, _ = trains_as_one_device(
        build_in_float64,
        uneven_fit(x, y, weight.reshape(-1, 4)),
        tolerance=1e-12,
        seen_tolerance=1e-12,
    )
    assert {weights.dtype.name for weights in outcome.weights} == {"float64"}


class WeighsByVariables(keras.Model):
    """A model that learns how much each example weighs in its loss."""

    def __init__(self):
        super().__init__()
        self.answer = keras.layers.Dense(1)
        self.weight = keras.layers.Dense(1, activation="softplus")
        self.mean = losses.MeanSquaredError(reduction="mean_with_sample_weight")

    def call(self, x):
        return self.answer(x) + 0.0 * self.weight(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.mean(y, y_pred, sample_weight=self.weight(x)[:, 0])


@pytest.mark.exhaustive("test_a_loss_of_any_form_is_the_global_batchs")
def test_weights_that_depend_on_variables_have_their_gradient(trains_as_one_device):
    x = np.random.default_rng(0).normal(size=(sum(SIZES), 3)).astype("float32")

    def build_and_compile():
        model = WeighsByVariables()
        model(x[:1])
        model.compile(keras.optimizers.SGD(0.1))
        return model

    outcome, _ = trains_as_one_device(
        build_and_compile, uneven_fit(x, np.sin(x.sum(1, keepdims=True)))
    )
    assert len(outcome.weights) == 4


class Fractions(keras.layers.Layer):
    """A layer whose mask holds numbers between 0 and 1."""

    def call(self, x):
        return x

    def compute_mask(self, x, previous_mask=None):
        return ops.clip(x[..., 0], 0.0, 1.0)


@pytest.mark.exhaustive("keras/test_batches.py::test_masks_count_as_on_one_device")
def test_a_mask_of_fractions_counts_as_on_one_device(trains_as_one_device):
    x = np.random.default_rng(0).normal(size=(sum(SIZES), 4, 3)).astype("float32")

    def build_masked():
        model = keras.Sequential(
            [keras.Input((4, 3)), Fractions(), keras.layers.Dense(1, activation="tanh")]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build_masked, uneven_fit(x, np.sin(x.sum(-1, keepdims=True))))
