"""`.keras` files carry weights, slots and open windows between scopes of any size."""

import functools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import optimizers

X, Y = harness.regression_data(37)  # six batches: a window of four is left open


def accumulating(**options):
    return optimizers.Adam(0.05, gradient_accumulation_steps=4, **options)


OPTIMIZERS = {
    "Adam": lambda: optimizers.Adam(0.05),
    "an average": lambda: optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.5),
    "an open window": lambda: accumulating(clipnorm=0.3),
    "an open window under a loss scale": lambda: optimizers.LossScaleOptimizer(
        accumulating(global_clipnorm=0.3), initial_scale=64.0, dynamic_growth_steps=3
    ),
}


def fit(model):
    return harness.fit_arrays(model, X, Y, epochs=1)


@functools.cache
def uninterrupted(case):
    """One device that trains on and on."""
    return harness.train(
        lambda: harness.dense_model(OPTIMIZERS[case]()), lambda model: [fit(model), fit(model)]
    )


def interrupted(case, path, first, second):
    """Trains on `first` replicas, saves, loads on `second` and goes on."""
    model = harness.build_in_scope(lambda: harness.dense_model(OPTIMIZERS[case]()), first)
    before = fit(model)
    model.save(path)
    at_saving = harness.weights(model), harness.slots(model)
    if "window" in case:
        assert any(np.any(share) for share in at_saving[1]["accumulator"]), "No window is open."
    del model
    harness.start_over()
    with harness.scope(second):
        loaded = keras.saving.load_model(path)
    harness.assert_close(harness.weights(loaded), at_saving[0], 1e-6, "loaded weights")
    harness.assert_close(harness.slots(loaded), at_saving[1], 1e-6, "loaded slots")
    if second is None:
        harness.report_the_loss_scale(loaded)
    after = fit(loaded)
    if second is not None:
        harness.assert_replicas_identical(loaded)
    return harness.Outcome(harness.weights(loaded), harness.slots(loaded), [before, after])


# An open window is what depends on the number of replicas.
MOVES = [
    ("an open window", 3, 2),
    ("an open window", 3, 3),
    ("an open window", 2, 4),
    ("an open window", 4, None),
    ("an open window", None, 2),
    ("an open window under a loss scale", 3, 2),
    ("an open window under a loss scale", None, 2),
    ("an average", 2, 4),
    ("Adam", 3, 2),
    ("Adam", 4, None),
]


@pytest.mark.telling
@pytest.mark.parametrize(
    ("case", "first", "second"),
    tiers.first_of(*MOVES),
)
def test_a_saved_model_goes_on_where_it_stopped(case, first, second, tmp_path):
    outcome = interrupted(case, tmp_path / "model.keras", first, second)
    harness.assert_same_outcome(outcome, uninterrupted(case))


@pytest.mark.exhaustive("test_a_saved_model_goes_on_where_it_stopped")
def test_weights_alone_move_between_scopes(tmp_path, replicas):
    path = tmp_path / "model.weights.h5"
    source = harness.build_in_scope(harness.dense_model, replicas)
    fit(source)
    source.save_weights(path)
    for count in (None, replicas % 3 + 2):
        target = harness.build_in_scope(harness.dense_model, count)
        target.load_weights(path)
        for a, b in zip(harness.weights(source), harness.weights(target), strict=True):
            np.testing.assert_array_equal(a, b)
        harness.assert_replicas_identical(target)


@pytest.mark.slow
@harness.in_one_process
def test_a_checkpoint_holds_one_copy_of_every_variable(tmp_path, replicas):
    model = harness.build_in_scope(harness.dense_model, replicas)
    fit(model)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")
    expected = harness.weights(model)
    for variable in model.trainable_variables:
        variable.assign(variable * 0.0)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
    for a, b in zip(harness.weights(model), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    harness.assert_replicas_identical(model)
