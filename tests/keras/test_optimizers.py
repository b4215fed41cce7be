"""Every Keras optimizer, and the user's own, trains as on one device."""

import inspect

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops, optimizers

import tfdp
from tfdp.optimizers import LAMB, LARS, PolynomialDecay


class Damped(optimizers.Optimizer):
    """A user's optimizer that is not linear in the gradient, with a slot of its own."""

    def __init__(self, learning_rate=0.05, **kwargs):
        super().__init__(learning_rate, **kwargs)

    def build(self, variables):
        super().build(variables)
        self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        damped = gradient / (ops.abs(gradient) + 0.1)
        self.assign(momentum, 0.5 * momentum + damped)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * momentum)


class Halved(optimizers.schedules.LearningRateSchedule):
    """A user's schedule, without `get_config`; the optimizer's raises then."""

    def __call__(self, step):
        return 0.1 / (1.0 + ops.cast(step, "float32"))


def two_optimizers():
    chosen = optimizers.OptimizerMap(optimizers.SGD(0.1), {".*kernel": optimizers.Adam(0.02)})
    return optimizers.MultiOptimizer(chosen)


# One row for each public optimizer, at a learning rate that moves the weights in a few steps.
OPTIMIZERS = {
    "Adadelta": lambda: optimizers.Adadelta(5.0),
    "Adafactor": lambda: optimizers.Adafactor(0.05),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adam": lambda: optimizers.Adam(0.02, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.02, weight_decay=0.1),
    "Adamax": lambda: optimizers.Adamax(0.02),
    "Ftrl": lambda: optimizers.Ftrl(0.1, l2_regularization_strength=0.01),
    "Lamb": lambda: optimizers.Lamb(0.02),
    "Lion": lambda: optimizers.Lion(0.01),
    "LAMB": lambda: LAMB(0.02, weight_decay=0.1),
    "LARS": lambda: LARS(0.5, trust_coefficient=0.1, weight_decay=0.1, nesterov=True),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.02)),
    "MultiOptimizer": two_optimizers,
    "Muon": lambda: optimizers.Muon(0.02),
    "Nadam": lambda: optimizers.Nadam(0.02),
    "RMSprop": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "SGD": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(0.02),
}

# Keras has these since 3.14.
OPTIMIZERS = {
    name: make
    for name, make in OPTIMIZERS.items()
    if name in ("LAMB", "LARS") or hasattr(optimizers, name)
}

FAST = {"Adam", "MultiOptimizer"}

# What every optimizer can be asked for.
OPTIONS = {
    "weight decay": lambda: optimizers.SGD(0.1, weight_decay=0.2),
    "a schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)),
    "a schedule without a configuration": lambda: optimizers.SGD(Halved(), momentum=0.9),
    "an average": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "an average that overwrites": lambda: optimizers.Adam(
        0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    ),
    "a user's own optimizer with options": lambda: Damped(
        weight_decay=0.1, global_clipnorm=0.5, use_ema=True, ema_overwrite_frequency=3
    ),
}

FAST_OPTIONS = {
    "an average that overwrites",
    "a user's own optimizer with options",
}

# What a large batch is trained with, all at once.
LAYERWISE = {
    "LARS": lambda **options: LARS(
        PolynomialDecay(1.0, 12, warmup_steps=3), trust_coefficient=0.1, **options
    ),
    "LAMB": lambda **options: LAMB(
        PolynomialDecay(0.1, 12, warmup_steps=3, power=1.0), weight_decay=0.1, **options
    ),
}
LAYERWISE_OPTIONS = {
    "windows that are clipped": {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5},
    "an average that overwrites": {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
    },
    "no exclusions, and bounds": {
        "exclude_from_weight_decay": [],
        "exclude_from_layer_adaptation": [],
        "weight_norm_bounds": (0.1, 1.5),
        "trust_ratio_bounds": (0.0, 0.75),
    },
}
layerwise = pytest.mark.parametrize("name", tiers.first_of("LAMB", "LARS"))


def test_every_public_optimizer_has_a_row():
    public = {
        name
        for module in (optimizers, tfdp.optimizers)
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, optimizers.Optimizer)
    }
    assert public - {"Optimizer"} == set(OPTIMIZERS)


@pytest.mark.parametrize(
    "name",
    tiers.cases(OPTIMIZERS, FAST),
)
def test_every_optimizer_trains_as_on_one_device(name, trains_as_one_device):
    outcome, _ = trains_as_one_device(lambda: harness.dense_model(OPTIMIZERS[name]()))
    untrained = harness.weights(harness.build_in_scope(harness.dense_model))
    moved = max(np.abs(a - b).max() for a, b in zip(outcome.weights, untrained, strict=True))
    assert moved > 1e-2, "The optimizer hardly moved; the comparison says nothing."


@pytest.mark.parametrize(
    "option",
    tiers.cases(OPTIONS, FAST_OPTIONS),
)
def test_an_optimizers_options_work_as_on_one_device(option, trains_as_one_device):
    trains_as_one_device(lambda: harness.dense_model(OPTIONS[option]()))


def test_constraints_are_kept_as_on_one_device(trains_as_one_device):
    def build():
        model = harness.dense_model(optimizers.SGD(0.3))
        for layer in model.layers:
            layer.kernel.constraint = keras.constraints.MaxNorm(0.5)
        return model

    outcome, _ = trains_as_one_device(build)
    norms = np.linalg.norm(outcome.weights[0], axis=0)
    assert norms.max() <= 0.5 + 1e-6
    assert norms.max() > 0.499, "No column reaches the bound; the constraint was not at work."


# ---- LARS and LAMB: their norms are of whole variables, and of whole gradients ----


@pytest.mark.exhaustive("test_an_optimizers_options_work_as_on_one_device")
@pytest.mark.parametrize("option", LAYERWISE_OPTIONS)
@layerwise
def test_a_layerwise_optimizers_options_work_as_on_one_device(name, option, trains_as_one_device):
    def use(model):
        trace = harness.Trace()
        harness.fit_arrays(model, epochs=2, callbacks=[trace])
        return trace.steps

    trains_as_one_device(
        lambda: harness.dense_model(LAYERWISE[name](**LAYERWISE_OPTIONS[option])), use
    )


@pytest.mark.exhaustive(
    "keras/test_loss_scaling.py::test_an_overflow_on_any_one_replica_makes_all_skip"
)
@pytest.mark.parametrize(("name", "bad"), [("LAMB", np.inf), ("LARS", np.nan)])
def test_an_overflow_on_one_replica_leaves_a_layerwise_optimizer_as_on_one_device(
    name, bad, trains_as_one_device
):
    x, y = harness.regression_data(64)
    y = y.copy()
    y[8] = bad  # the first example of the second batch: one replica alone sees it

    def build():
        inner = LAYERWISE[name](gradient_accumulation_steps=2, global_clipnorm=0.5)
        optimizer = optimizers.LossScaleOptimizer(inner, initial_scale=32.0)
        return harness.dense_model(optimizer)

    def use(model):
        trace, scales = harness.Trace(), []
        record = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: scales.append(
                float(harness.global_value(model.optimizer.dynamic_scale))
            )
        )
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        model.fit(data, callbacks=[trace, record], verbose=0)
        return {**trace.steps, "scales": scales}

    outcome, _ = trains_as_one_device(build, use)
    assert outcome.seen["scales"] == [32.0] + [16.0] * 7
    # Its step is not taken, and counts in no window: the third and the fifth good one close one.
    kernels = [step[0] for step in outcome.seen["weights"]]
    moved = [i for i in range(1, 8) if np.any(kernels[i] != kernels[i - 1])]
    assert moved == [2, 4, 6]


@pytest.mark.exhaustive("keras/test_loss_scaling.py::test_a_mixed_policy_trains_as_on_one_device")
@pytest.mark.parametrize(
    ("name", "policy", "tolerance"),
    [("LAMB", "mixed_float16", 5e-3), ("LARS", "mixed_bfloat16", 4e-2)],
)
def test_a_layerwise_optimizer_trains_mixed_precision_as_on_one_device(
    name, policy, tolerance, trains_as_one_device
):
    def build():
        keras.config.set_dtype_policy(policy)
        # An ε that matters: else a gradient of rounding alone takes a step of full length.
        options = {"epsilon": 0.01} if name == "LAMB" else {}
        # Low: no sum of a whole batch overflows where a share does not.
        return harness.dense_model(
            optimizers.LossScaleOptimizer(LAYERWISE[name](**options), initial_scale=64.0)
        )

    x, y = harness.regression_data()
    outcome, _ = trains_as_one_device(
        build,
        lambda model: harness.fit_arrays(model, 0.1 * x, 0.1 * y),
        tolerance=tolerance,
        slot_tolerance=0.05,
    )
    assert float(outcome.slots["scale"][0]) == 64.0
    arrays = [*outcome.weights, *(v for kind in outcome.slots.values() for v in kind if v.shape)]
    assert all(array.dtype == np.float32 for array in arrays)


@pytest.mark.exhaustive("keras/test_gradients.py::test_sparse_gradients_train_as_on_one_device")
@layerwise
def test_a_layerwise_optimizer_takes_sparse_gradients_as_on_one_device(name, trains_as_one_device):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, (21, 4)).astype("int32")
    ids[:, 1] = ids[:, 0]  # duplicates within an example, and between replicas
    targets = ids.sum(1, keepdims=True).astype("float32") / 5

    def build():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                layers.Embedding(9, 3),  # ids 6 to 8 never occur
                layers.GlobalAveragePooling1D(),
                layers.Dense(1),
            ]
        )
        model.compile(LAYERWISE[name](clipnorm=0.5), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, ids, targets))
