"""Gradient accumulation: the windows, and all that happens when one closes, are one device's."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import optimizers

WINDOW = 4


def sgd(**options):
    return optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=WINDOW, **options)


def adam(**options):
    return optimizers.Adam(0.05, gradient_accumulation_steps=WINDOW, **options)


OPTIMIZERS = {
    "Adam": adam,
    "clipnorm": lambda: sgd(clipnorm=0.3),
    "global_clipnorm": lambda: sgd(global_clipnorm=0.3),
    "clipvalue": lambda: sgd(clipvalue=0.1),
    "weight decay": lambda: sgd(weight_decay=0.1),
    "an average that overwrites": lambda: sgd(use_ema=True, ema_overwrite_frequency=2),
    "a schedule": lambda: optimizers.SGD(
        optimizers.schedules.ExponentialDecay(0.2, 1, 0.5), gradient_accumulation_steps=WINDOW
    ),
    "a loss scale factor": lambda: sgd(loss_scale_factor=16.0),
    "a loss scale": lambda: optimizers.LossScaleOptimizer(
        adam(global_clipnorm=0.3), initial_scale=64.0, dynamic_growth_steps=3
    ),
    "two optimizers": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(sgd(), {".*kernel": optimizers.Adam(0.02)})
    ),
}
FAST = {"global_clipnorm"}


def traced_fit(make_data, **fit):
    """Returns a `use` that fits and hands back what every step left behind."""

    def use(model):
        trace = harness.Trace()
        model.fit(make_data(), callbacks=[trace], verbose=0, **fit)
        return trace.steps

    return use


def five_batches_the_last_partial():
    x, y = harness.regression_data(22)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(5)


@pytest.mark.parametrize(
    "case",
    tiers.cases(OPTIMIZERS, FAST),
)
def test_windows_run_over_epoch_ends_as_on_one_device(case, trains_as_one_device):
    # 15 steps make three whole windows and an open one; none ends with its epoch.
    use = traced_fit(five_batches_the_last_partial, epochs=3)
    _, reference = trains_as_one_device(lambda: harness.dense_model(OPTIMIZERS[case]()), use)
    # Two optimizers count their own windows; an average overwrites weights between updates.
    if case not in ("two optimizers", "an average that overwrites"):
        kernels = [w[0] for w in reference.seen["weights"]]
        moved = [i for i in range(1, 15) if np.any(kernels[i] != kernels[i - 1])]
        assert moved == [3, 7, 11]


@harness.on_three_and_four_replicas
def test_uneven_and_empty_shares_count_in_a_window(trains_as_one_device):
    x, y = harness.regression_data(29)
    use = traced_fit(lambda: harness.batches_of([3, 8, 1, 5, 2, 8, 1, 1], x, y))
    trains_as_one_device(lambda: harness.dense_model(sgd(global_clipnorm=0.3)), use)


@pytest.mark.parametrize(
    "options",
    tiers.first_of({}, {"clipnorm": 0.05}),
    ids=["plain", "clipnorm"],
)
def test_sparse_gradients_accumulate_as_on_one_device(options, trains_as_one_device):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, (21, 4)).astype("int32")
    targets = ids.sum(1, keepdims=True).astype("float32")

    def build():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(7, 3),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(sgd(**options), loss="mse")
        return model

    def data():
        return tf.data.Dataset.from_tensor_slices((ids, targets)).batch(5)

    trains_as_one_device(build, traced_fit(data, epochs=2))


@pytest.mark.telling
@pytest.mark.parametrize("bad", tiers.first_of(np.inf, np.nan), ids=["inf", "nan"])
def test_an_overflow_within_a_window_leaves_one_devices_trace(bad, trains_as_one_device):
    x, y = harness.regression_data(64)
    y = y.copy()
    y[8] = bad  # the first example of the second micro-batch: one replica alone sees it

    def data():
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    def build():
        inner = adam(global_clipnorm=0.3)
        optimizer = optimizers.LossScaleOptimizer(inner, initial_scale=32.0)
        return harness.dense_model(optimizer)

    def use(model):
        trace, scales, counts = harness.Trace(), [], []

        def record(batch, logs):
            optimizer = model.optimizer
            scales.append(float(harness.global_value(optimizer.dynamic_scale)))
            counts.append(int(harness.global_value(optimizer.inner_optimizer._iterations)))

        recorder = keras.callbacks.LambdaCallback(on_train_batch_end=record)
        model.fit(data(), callbacks=[trace, recorder], verbose=0)
        return {**trace.steps, "scale": scales, "micro-batches": counts}

    outcome, _ = trains_as_one_device(build, use)
    assert outcome.seen["scale"] == [32.0] + [16.0] * 7
    assert outcome.seen["micro-batches"] == [1, 1, 2, 3, 4, 5, 6, 7]
    kernels = [w[0] for w in outcome.seen["weights"]]
    assert [i for i in range(1, 8) if np.any(kernels[i] != kernels[i - 1])] == [4]


@pytest.mark.slow
@harness.in_one_process
def test_an_open_windows_gradients_stay_local_and_add_up():
    """Accumulators differ between replicas, and their sum is the window's gradient."""
    x, y = harness.regression_data(16)

    def fit(model):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        acc = [v for v in model.optimizer.variables if harness.is_accumulator(v)]
        return [harness.components(v) for v in acc]

    [whole], *_ = harness.train(lambda: harness.dense_model(sgd()), fit).seen
    shares, *_ = harness.train(lambda: harness.dense_model(sgd()), fit, replicas=2).seen
    assert np.any(shares[0] != shares[1])
    np.testing.assert_allclose(shares[0] + shares[1], whole, rtol=1e-5, atol=1e-6)


class Collecting(optimizers.SGD):
    """Keeps a sum of gradients by the name of those that Keras accumulates."""

    def build(self, variables):
        super().build(variables)
        self.kept = [
            self.add_variable_from_reference(one, name="gradient_accumulator") for one in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        kept = self.kept[self._get_variable_index(variable)]
        self.assign_add(kept, gradient)
        super().update_step(kept, variable, learning_rate)


@pytest.mark.parametrize("window", tiers.first_of(WINDOW, None))
def test_a_slot_of_that_name_of_ones_own_is_no_accumulated_gradient(window, trains_as_one_device):
    def use(model):
        harness.fit_arrays(model)
        return [np.asarray(slot.numpy()) for slot in model.optimizer.kept]

    def build():
        return harness.dense_model(Collecting(0.01, gradient_accumulation_steps=window))

    trains_as_one_device(build, use)
