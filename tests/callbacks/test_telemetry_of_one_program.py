"""`Telemetry` of steps that all replicas run as one program: what each collective is for."""

import json

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

import tfdp

pytestmark = [pytest.mark.slow, harness.in_one_process]


@pytest.fixture(autouse=True)
def as_one_program(monkeypatch):
    monkeypatch.setenv("TFDP_ONE_PROGRAM", "1")


def lines(folder, build, replicas=2, data=None, **options):
    """Trains a model, every step a sample; returns the lines of its steps."""
    model = harness.build_in_scope(build, replicas)
    callback = tfdp.callbacks.Telemetry(folder, 1)
    x, y = data or harness.regression_data()
    model.fit(x, y, batch_size=7, verbose=0, callbacks=[callback], **options)
    records = map(json.loads, (folder / "rank0.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "step"]


def test_what_the_backward_pass_needs_is_a_meeting(tmp_path):
    def build():
        model = keras.Sequential(
            [
                keras.Input([5]),
                keras.layers.Dense(4),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
        return model

    steps = lines(tmp_path, build)
    # The mean and the variance. What the backward pass makes of them travels with gradients.
    assert {step["collectives"]["meetings"] for step in steps} == {2}
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
        self.optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)]

    def train_step(self, data):
        x, y = data
        for layer, optimizer in zip((self.one, self.other), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            optimizer.apply(tape.gradient(loss, layer.variables), layer.variables)
        return {"loss": loss}


def test_updates_in_turn_are_buckets_each(tmp_path):
    def build():
        model = InTurn()
        model.compile()
        model.one.build([None, 5])
        model.other.build([None, 3])
        for layer, optimizer in zip((model.one, model.other), model.optimizers, strict=True):
            optimizer.build(layer.variables)
        return model

    steps = lines(tmp_path, build)
    assert {step["collectives"]["buckets"] for step in steps} == {2}
    # From two replicas each the bytes of its gradients: 18 numbers and 4.
    assert {step["bytes_sent"] for step in steps} == {2 * 4 * (18 + 4)}
    assert sum(step["communication_seconds"] for step in steps) > 0


@pytest.mark.parametrize("optimizer", tiers.first_of("adam", "sgd"))
def test_rows_of_tables_are_among_the_buckets(tmp_path, optimizer):
    def build():
        model = keras.Sequential(
            [keras.Input([2]), keras.layers.Embedding(50, 3), keras.layers.Flatten()]
        )
        model.compile(optimizer, "mse")
        return model

    words, targets = np.arange(28).reshape(14, 2), np.ones([14, 6], "float32")
    steps = lines(tmp_path, build, data=(words, targets))
    assert all(step["bytes_sent"] > 0 and step["collectives"]["buckets"] >= 1 for step in steps)
    assert all(step["gradient_norm"] > 0 for step in steps)


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
    records = map(json.loads, (tmp_path / "rank0.jsonl").read_text().splitlines())
    steps = [record for record in records if record["kind"] == "step"]
    assert len({step["bytes_sent"] for step in steps}) == 1
    assert len({json.dumps(step["collectives"]) for step in steps}) == 1


def test_a_batch_that_is_given_whole_is_counted(tmp_path):
    model = harness.build_in_scope(harness.dense_model, 2)
    recorder = tfdp.recording.Recorder(model.distribute_strategy.extended.worker_devices)
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
