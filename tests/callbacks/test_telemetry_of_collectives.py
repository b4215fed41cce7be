"""`Telemetry` in one process: what steps send, and what each collective is for."""

import json

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from callbacks.telemetry_lines import lines

import tfdp
from tfdp.topology.costs import cost

pytestmark = [pytest.mark.slow, harness.in_one_process]


def fit(folder, build, replicas=2, **options):
    """Trains a model, every step a sample; returns it and the lines of its steps."""
    harness.start_over()
    with harness.strategy(replicas, **options).scope():
        model = build()
    callback = tfdp.callbacks.Telemetry(folder, 1)
    x, y = harness.regression_data()
    model.fit(x, y, batch_size=7, shuffle=False, verbose=0, callbacks=[callback])
    return model, lines(folder)


@pytest.mark.parametrize("topology", tiers.first_of("ring", "native", "tree", "direct"))
def test_bytes_are_those_of_the_schedule(tmp_path, topology):
    model, steps = fit(tmp_path, harness.dense_model, 3, topology=topology)
    schedule = model.distribute_strategy.topology.schedule
    # One bucket, in which four numbers of the loss and the metric travel with gradients.
    size = 4 * (model.count_params() + 4)
    expected = sum(cost(schedule(3, [0] * 3, size), [0] * 3, size).bytes_sent)
    assert {step["bytes_sent"] for step in steps} == {expected}
    # The loss and the metrics travel with the gradients.
    assert [step["collectives"] for step in steps] == 5 * [
        {"meetings": 0, "buckets": 1, "endings": 0}
    ]


def test_what_the_backward_pass_needs_is_a_meeting(tmp_path):
    def build():
        model = keras.Sequential(
            [
                keras.Input([5]),
                keras.layers.Dense(4),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
        return model

    _, steps = fit(tmp_path, build)
    # The statistics. What the backward pass makes of them travels with gradients.
    assert {step["collectives"]["meetings"] for step in steps} == {1}
    assert all(step["collectives"]["buckets"] >= 2 for step in steps)
    assert sum(step["meeting_seconds"] for step in steps) > 0
    assert all(step["bytes_sent"] >= 2 * 4 * 37 for step in steps)  # of all weights


@keras.saving.register_keras_serializable("tests")
class InTurn(keras.Model):
    """Updates one layer, then another by what that gives now."""

    def __init__(self):
        super().__init__()
        self.one, self.other = keras.layers.Dense(3), keras.layers.Dense(1)

    def call(self, x):
        return self.other(self.one(x))

    def compile(self):
        super().compile()
        self.optimizers = [keras.optimizers.SGD(1e-3), keras.optimizers.SGD(1e-3)]

    def train_step(self, data):
        x, y = data
        for layer, optimizer in zip((self.one, self.other), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            optimizer.apply(tape.gradient(loss, layer.variables), layer.variables)
        return {"loss": loss}


def in_turn():
    model = InTurn()
    model.compile()
    model.one.build([None, 5])
    model.other.build([None, 3])
    for layer, optimizer in zip((model.one, model.other), model.optimizers, strict=True):
        optimizer.build(layer.variables)
    return model


def norms_in_turn():
    """The norm of both layers' gradients in each step, on one device and without an optimizer."""
    model, norms = harness.build_in_scope(in_turn), []
    x, y = harness.regression_data()
    for start in range(0, len(x), 7):
        squares = 0.0
        for layer in (model.one, model.other):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x[start : start + 7]) - y[start : start + 7]))
            gradients = tape.gradient(loss, layer.variables)
            squares += sum(float(tf.reduce_sum(tf.square(g))) for g in gradients)
            for variable, gradient in zip(layer.variables, gradients, strict=True):
                variable.assign(variable - 1e-3 * tf.convert_to_tensor(gradient))
        norms.append(squares**0.5)
    return norms


def test_two_optimizers_in_turn_are_buckets_each_and_one_norm(tmp_path):
    _, steps = fit(tmp_path, in_turn)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    assert {step["collectives"]["buckets"] for step in steps} == {2}
    # From two replicas each the bytes of its gradients, 18 numbers and 4, and of the loss.
    assert {step["bytes_sent"] for step in steps} == {2 * 4 * (18 + 4 + 1)}
    assert sum(step["communication_seconds"] for step in steps) > 0
    # As if both layers' gradients were one model's.
    np.testing.assert_allclose([s["gradient_norm"] for s in steps], norms_in_turn(), rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_model_trains_with_it_as_without(tmp_path, optimizer):
    """Also in steps that are samples no gradient is sent twice."""

    def weights(callbacks):
        model = harness.build_in_scope(lambda: harness.dense_model(optimizer), 3)
        x, y = harness.regression_data()
        model.fit(x, y, batch_size=7, shuffle=False, verbose=0, callbacks=callbacks)
        return model.get_weights()

    found = weights([tfdp.callbacks.Telemetry(tmp_path, 2)])
    for mine, theirs in zip(found, weights([]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    steps = lines(tmp_path)
    assert len({step["bytes_sent"] for step in steps}) == 1
    assert len({json.dumps(step["collectives"]) for step in steps}) == 1


def test_rows_of_a_table_that_repeat_train_with_it_as_without(tmp_path):
    """Adam squares the gradient of each occurrence of a row by itself, as on one device."""

    def build():
        model = keras.Sequential([keras.layers.Embedding(3, 2), keras.layers.GlobalMaxPooling1D()])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.build([None, 4])
        return model

    ids, targets = np.arange(24).reshape(6, 4) % 3, np.ones([6, 2], "float32")

    def weights(replicas, callbacks):
        model = harness.build_in_scope(build, replicas)
        model.fit(ids, targets, batch_size=6, epochs=3, verbose=0, callbacks=callbacks)
        return model.get_weights()[0]

    found = weights(2, [tfdp.callbacks.Telemetry(tmp_path, 1)])
    np.testing.assert_allclose(found, weights(2, []), rtol=1e-5)
    np.testing.assert_allclose(found, weights(None, []), rtol=1e-5)


def test_a_batch_that_is_given_whole_is_counted():
    model = harness.build_in_scope(harness.dense_model, 2)
    recorder = tfdp.base.recording.Recorder(model.distribute_strategy.extended.worker_devices)
    recorder.attach(model)
    x, y = harness.regression_data()
    model.train_on_batch(x[:5], y[:5])
    model.train_on_batch(x[:3], y[:3])
    read = recorder.read()
    assert [read.of(name).tolist() for name in ("steps", "examples", "updates")] == [
        [2, 2],
        [8, 8],
        [2, 2],
    ]
