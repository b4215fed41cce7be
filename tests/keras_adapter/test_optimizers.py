"""Every Keras optimizer, and the user's own, trains as on one device."""

import inspect

import harness
import keras
import numpy as np
import pytest
from keras import ops, optimizers


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
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.02)),
    "MultiOptimizer": two_optimizers,
    "Muon": lambda: optimizers.Muon(0.02),
    "Nadam": lambda: optimizers.Nadam(0.02),
    "RMSprop": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "SGD": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(0.02),
}

FAST = {"Adam", "LossScaleOptimizer", "MultiOptimizer", "Muon", "SGD"}

# What every optimizer can be asked for.
OPTIONS = {
    "weight decay": lambda: optimizers.SGD(0.1, weight_decay=0.2),
    "a schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)),
    "an average": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "an average that overwrites": lambda: optimizers.Adam(
        0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    ),
    "a user's own optimizer with options": lambda: Damped(
        weight_decay=0.1, global_clipnorm=0.5, use_ema=True, ema_overwrite_frequency=3
    ),
}


def test_every_public_optimizer_has_a_row():
    public = {
        name
        for name, value in vars(optimizers).items()
        if inspect.isclass(value) and issubclass(value, optimizers.Optimizer)
    }
    assert public - {"Optimizer"} == set(OPTIMIZERS)


@pytest.mark.parametrize(
    "name",
    [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS],
)
def test_every_optimizer_trains_as_on_one_device(name, trains_as_one_device):
    outcome, _ = trains_as_one_device(lambda: harness.dense_model(OPTIMIZERS[name]()))
    untrained = harness.weights(harness.build_in_scope(harness.dense_model))
    moved = max(np.abs(a - b).max() for a, b in zip(outcome.weights, untrained, strict=True))
    assert moved > 1e-2, "The optimizer hardly moved; the comparison says nothing."


@pytest.mark.parametrize("option", OPTIONS)
def test_an_optimizers_options_work_as_on_one_device(option, trains_as_one_device):
    trains_as_one_device(lambda: harness.dense_model(OPTIONS[option]()))


@harness.on_two_to_four_replicas
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
