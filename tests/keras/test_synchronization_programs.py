"""Programs under a synchronization that do something else besides: scales, windows, loops."""

import json

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers
from local_workers import LargestWithFeedback, Nesterov, Workers, gossip_matrix

import tfdp
from tfdp.compression import Cast, ErrorFeedback, TopK
from tfdp.synchronization import DiLoCo, Gossip, LocalSGD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive(
        "keras/test_synchronization.py::test_training_is_that_of_workers_that_agree"
    ),
]

BATCH = 8


def sgd(**options):
    return optimizers.SGD(0.05, momentum=0.9, **options)


def dense(optimizer, **options):
    return harness.dense_model(optimizer, metrics=(), **options)


def made(replicas, synchronization, make, **options):
    harness.start_over()
    strategy = harness.strategy(replicas, synchronization=synchronization, **options)
    with strategy.scope():
        return make()


def assert_as(model, workers, tolerance=1e-5):
    expected = [mean.astype("float32") for mean in workers.mean()]
    harness.assert_close_arrays(model.get_weights(), expected, tolerance, "weights")
    copies = [len({c.numpy().tobytes() for c in v.value.values}) for v in model.trainable_variables]
    assert set(copies) == {1}


def gossip(make, replicas, every=1):
    return Workers(make, replicas, every, mix=gossip_matrix("exponential", replicas))


@harness.in_one_process
def test_a_loss_scale_of_mixed_precision_grows_as_the_workers_does():
    def make():
        first = keras.layers.Dense(6, dtype="mixed_float16")
        model = keras.Sequential([keras.Input((5,)), first, keras.layers.Dense(1, dtype="float32")])
        options = {"initial_scale": 128.0, "dynamic_growth_steps": 3}
        model.compile(optimizers.LossScaleOptimizer(sgd(), **options), "mse")
        return model

    x, y = harness.regression_data(32)
    model = made(2, LocalSGD(2), make)
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    workers = Workers(make, 2, 2).fit(x, y, BATCH, epochs=2)
    assert_as(model, workers, 2e-3)
    scales = [float(each.optimizer.dynamic_scale) for each in (model, *workers.models)]
    assert len(set(scales)) == 1 and scales[0] != 128.0


@pytest.mark.parametrize("synchronization", [LocalSGD(2), Gossip()], ids=repr)
@harness.in_one_process
def test_an_overflow_within_a_window_leaves_the_workers_trace(synchronization):
    def make():
        inner = sgd(gradient_accumulation_steps=2)
        return dense(optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10))

    x, y = harness.regression_data(32)
    y[9] = 1e37
    model = made(2, synchronization, make)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    workers = (gossip(make, 2) if isinstance(synchronization, Gossip) else Workers(make, 2, 2)).fit(
        x, y, 4
    )
    assert_as(model, workers)


@pytest.mark.parametrize("frequency", [2, 3])
@harness.in_one_process
def test_each_replica_goes_on_from_its_own_average_where_that_overwrites_weights(frequency):
    def make():
        ema = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": frequency}
        return dense(sgd(**ema))

    x, y = harness.regression_data(32)
    model, workers = made(2, LocalSGD(2), make), Workers(make, 2, 2)
    for start in range(0, 32, BATCH):
        batch = x[start : start + BATCH], y[start : start + BATCH]
        model.train_on_batch(*batch)
        workers.step(*batch)
        expected = [mean.astype("float32") for mean in workers.mean()]
        harness.assert_close_arrays(model.get_weights(), expected, 1e-5, "weights")


@harness.in_one_process
def test_windows_and_executions_of_several_steps_run_over_rounds_and_epochs():
    def make():
        inner = optimizers.AdamW(0.01, gradient_accumulation_steps=3)
        return dense(inner, steps_per_execution=3)

    x, y = harness.regression_data(56)
    model = made(2, DiLoCo(2), make)
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    assert_as(model, Workers(make, 2, 2, outer=Nesterov()).fit(x, y, 7, epochs=2))


@pytest.mark.parametrize("synchronization", [DiLoCo(2), Gossip(every=2)], ids=repr)
@harness.in_one_process
def test_a_loop_within_a_function_synchronizes(synchronization):
    x, y = harness.regression_data(32)
    model = made(4, synchronization, lambda: dense(sgd()))
    strategy = model.distribute_strategy
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    def of_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((y - model(x, training=True)) ** 2) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def epoch(iterator):
        for _ in tf.range(3):
            strategy.run(of_replica, args=next(iterator))

    epoch(iter(strategy.experimental_distribute_dataset(batches)))

    def make():
        return dense(sgd())

    is_gossip = isinstance(synchronization, Gossip)
    workers = gossip(make, 4, 2) if is_gossip else Workers(make, 4, 2, outer=Nesterov())
    for start in (0, 8, 16):
        workers.step(x[start : start + BATCH], y[start : start + BATCH])
    strategy.synchronize(model)
    workers.synchronize()
    assert_as(model, workers)


@harness.in_one_process
def test_layers_that_draw_or_keep_statistics_are_those_of_the_plain_strategy():
    def make():
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(6, activation="tanh"),
                layers.BatchNormalization(),
                layers.Dropout(0.5, seed=3),
                layers.GaussianNoise(0.1),
                layers.Dense(1),
            ]
        )
        model.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
        return model

    x, y = harness.regression_data(35)
    found = []
    for synchronization in (LocalSGD(1), None):
        model = made(3, synchronization, make)
        fit = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        found.append((model.get_weights(), fit.history))
    harness.assert_close_arrays(found[0][0], found[1][0], 1e-5, "weights")
    for name, values in found[0][1].items():
        np.testing.assert_allclose(values, found[1][1][name], rtol=1e-4)


@pytest.mark.parametrize(
    ("replicas", "options"),
    [(4, {"jit_compile": True}), (1, {})],
    ids=["compiled", "alone"],
)
@harness.in_one_process
def test_gossip_in_other_ways(replicas, options):
    def make():
        return dense(optimizers.Adam(0.01), **options)

    x, y = harness.regression_data(32)
    model = made(replicas, Gossip(), make)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_as(model, gossip(make, replicas).fit(x, y, BATCH))


@pytest.mark.parametrize("overlap", [None, 0.5], ids=["waiting", "overlapping"])
@pytest.mark.parametrize(
    ("replicas", "options"),
    [(3, {"jit_compile": True, "steps_per_execution": 3}), (1, {})],
    ids=["compiled", "alone"],
)
@harness.in_one_process
def test_compressed_fragments_in_other_ways(replicas, options, overlap):
    def make():
        # Adam would magnify, near a gradient of zero, what a compiled program rounds otherwise.
        return dense(sgd(), **options)

    x, y = harness.regression_data(32)
    compression = ErrorFeedback(TopK(0.4, smallest=4))
    synchronization = DiLoCo(3, fragments=2, overlap=overlap)
    model = made(replicas, synchronization, make, compression=compression)
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    places = vars(model.optimizer)["tfdp_round"]["fragments"]
    workers = Workers(
        make, replicas, 3, outer=[Nesterov() for _ in places], fragments=places,
        compress=LargestWithFeedback(0.4, smallest=4) if replicas > 1 else None, overlap=overlap,
    )  # fmt: skip
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert_as(model, workers.fit(x, y, BATCH, epochs=2))


@harness.in_one_process
def test_cast_rounds_outer_gradients_and_telemetry_has_what_is_sent_and_lost(tmp_path):
    x, y = harness.regression_data(32)

    def make():
        return dense(sgd())

    workers = Workers(make, 2, 2, outer=Nesterov()).fit(x, y, BATCH)
    model = made(2, DiLoCo(2), make, compression=Cast("bfloat16"))
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_as(model, workers, 1e-2)
    harness.start_over()
    compression = ErrorFeedback(TopK(0.4, smallest=4))
    model = made(2, DiLoCo(2), make, compression=compression)
    log = tfdp.callbacks.Telemetry(tmp_path, sample_every=1)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[log])
    lines = (tmp_path / "rank0.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["kind"] == "step"]
    assert ["compression_error" in step for step in steps] == [False, True, False, True]
    assert all("gradient_norm" in step for step in steps)
    # Of the kernels 12 and 3 numbers with their places; the biases as they are.
    sent = 2 * (8 * (12 + 3) + 4 * (6 + 1))
    assert [step["bytes_sent"] for step in steps] == [0, sent, 0, sent]
