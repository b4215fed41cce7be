"""Mixed precision: the policies, loss scales, and an overflow on any one replica."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import optimizers
from replica_counts import CLUSTER_REPLICAS, REPLICAS

INNER = {
    "SGD": lambda: optimizers.SGD(0.1, momentum=0.9),
    "Adam": lambda: optimizers.Adam(0.05, global_clipnorm=0.5),
}
each_inner = pytest.mark.parametrize("case", tiers.first_of("SGD", "Adam"))


def record_scale(model, scales):
    """A callback that notes the loss scale after every batch."""

    def note(batch, logs):
        scales.append(float(harness.global_value(model.optimizer.dynamic_scale)))

    return keras.callbacks.LambdaCallback(on_train_batch_end=note)


@pytest.mark.parametrize(
    ("policy", "tolerance"),
    tiers.first_of(("mixed_float16", 5e-3), ("mixed_bfloat16", 4e-2)),
)
def test_a_mixed_policy_trains_as_on_one_device(policy, tolerance, trains_as_one_device):
    def build():
        keras.config.set_dtype_policy(policy)
        return harness.dense_model(optimizers.SGD(0.05))

    x, y = harness.regression_data()

    def use(model):  # small values: no sum of a whole batch overflows where a share does not
        return harness.fit_arrays(model, 0.1 * x, 0.1 * y)

    outcome, _ = trains_as_one_device(build, use, tolerance=tolerance, slot_tolerance=0.05)
    assert all(w.dtype == np.float32 for w in outcome.weights)


@each_inner
def test_a_dynamic_loss_scale_grows_as_on_one_device(case, trains_as_one_device):
    def build():
        return harness.dense_model(
            optimizers.LossScaleOptimizer(
                INNER[case](), initial_scale=256.0, dynamic_growth_steps=2
            )
        )

    def use(model):
        trace, scales = harness.Trace(), []
        record = record_scale(model, scales)
        harness.fit_arrays(model, callbacks=[trace, record])
        return {**trace.steps, "scales": scales}

    outcome, _ = trains_as_one_device(build, use)
    assert outcome.seen["scales"] == [256.0, 512.0, 512.0, 1024.0, 1024.0]


@pytest.mark.slow
@each_inner
def test_a_loss_scale_factor_trains_as_on_one_device(case, trains_as_one_device):
    def build():
        optimizer = INNER[case]()
        optimizer.loss_scale_factor = 128.0
        return harness.dense_model(optimizer)

    trains_as_one_device(build)


@pytest.mark.parametrize(
    ("case", "bad", "replicas"),
    tiers.first_of(("SGD", np.inf, REPLICAS), ("Adam", np.nan, CLUSTER_REPLICAS or 4)),
)
def test_an_overflow_on_any_one_replica_makes_all_skip(case, bad, trains_as_one_device):
    # Good and bad batches take turns; the bad example falls to each of 2, 3 or 4 replicas.
    batch_size, places = 12, [0, 4, 6, 9]
    x, y = harness.regression_data(2 * len(places) * batch_size)
    y = y.copy()
    for ordinal, place in enumerate(places):
        y[(2 * ordinal + 1) * batch_size + place] = bad

    def build():
        optimizer = optimizers.LossScaleOptimizer(INNER[case](), initial_scale=1024.0)
        return harness.dense_model(optimizer)

    def use(model):
        trace, scales = harness.Trace(), []
        record = record_scale(model, scales)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
        model.fit(data, callbacks=[trace, record], verbose=0)
        return {**trace.steps, "scales": scales}

    outcome, _ = trains_as_one_device(build, use)
    scales = outcome.seen["scales"]
    assert scales == [1024.0 / 2 ** ((step + 1) // 2) for step in range(8)]
    inner = [
        [v for slots in step.values() for v in slots if v.shape] for step in outcome.seen["slots"]
    ]
    for step in range(1, 8, 2):
        for kind in (outcome.seen["weights"], inner):
            for before, after in zip(kind[step - 1], kind[step], strict=True):
                np.testing.assert_array_equal(before, after)
    assert np.all(np.isfinite(np.concatenate([w.ravel() for w in outcome.weights])))
