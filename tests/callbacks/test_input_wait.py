"""The fraction of time that steps wait for input is in the logs, and is what was waited."""

import time
import types

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
import tfdp.keras
from tfdp.callbacks import InputMonitor

tfdp.keras.install()  # on one device no strategy does it

pytestmark = pytest.mark.slow


def data(seconds=0.0, size=4):
    x, y = harness.regression_data(16)

    def slow(x, y):
        def wait(x):
            time.sleep(seconds)
            return x

        waited = tf.numpy_function(wait, [x], x.dtype)
        return tf.ensure_shape(waited, x.shape), y

    return tfdp.data.pipeline((x, y), size, seed=1, map_fn=slow, prefetch=0)


class Steps(keras.callbacks.Callback):
    """Makes each step last, and keeps what the logs say."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.seen = seconds, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["input_wait"])
        time.sleep(self.seconds)


@pytest.mark.parametrize("replicas", [None, 2])
def test_input_that_is_slow_is_waited_for_and_input_that_is_there_is_not(replicas):
    model = harness.build_in_scope(harness.dense_model, replicas)
    model.fit(data(), verbose=0)  # traces

    def waited(seconds, step):
        steps = Steps(step)
        history = model.fit(data(seconds), verbose=0, callbacks=[InputMonitor(), steps]).history
        assert len(steps.seen) == 4
        assert all(0 <= fraction <= 1 for fraction in steps.seen)
        assert history["input_wait"] == [steps.seen[-1]]
        return history["input_wait"][0]

    # Input that is there comes late where the machine does much else, but not each time.
    assert any(waited(0.1, 0.0) > 2 * waited(0.0, 0.1) for _ in range(10))


def test_the_fraction_is_of_the_time_between_steps(monkeypatch):
    """Four waits of 50 ms in four steps of 200 ms; what comes after the last step is no matter."""
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    pipeline = types.SimpleNamespace(progress=types.SimpleNamespace(waited_seconds=7.0))
    monitor, logs = InputMonitor(pipeline), {}
    monitor.on_train_begin()
    monitor.on_epoch_begin(0)
    for batch in range(4):
        now += 0.2
        pipeline.progress.waited_seconds += 0.05
        monitor.on_train_batch_end(batch, logs)
        assert logs["input_wait"] == pytest.approx(0.25)
    now += 10  # as validation takes
    pipeline.progress.waited_seconds += 1
    logs = {}
    monitor.on_epoch_end(0, logs)
    assert logs["input_wait"] == pytest.approx(0.25)
    monitor.on_epoch_begin(1)
    now += 0.1
    monitor.on_train_batch_end(0, logs)
    assert logs["input_wait"] == 0


def test_it_needs_a_pipeline():
    model = harness.build_in_scope(harness.dense_model)
    x, y = harness.regression_data(8)
    with pytest.raises(ValueError, match=r"needs a `tfdp.data.Pipeline`.*leave the callback out"):
        model.fit(x, y, verbose=0, callbacks=[InputMonitor()])


def test_a_pipeline_that_is_given_is_kept_and_one_that_is_found_is_the_latest():
    given, found, later = data(), data(), data()
    kept, free = InputMonitor(given), InputMonitor()
    model = harness.build_in_scope(harness.dense_model)
    for batches in (found, later):
        model.fit(batches, verbose=0, callbacks=[kept, free])
        assert kept._watched is given
        assert free._watched is batches
    with pytest.raises(ValueError, match=r"needs a `tfdp.data.Pipeline`"):
        model.fit(*harness.regression_data(8), verbose=0, callbacks=[free])


def test_history_and_the_progress_bar_have_it(capsys):
    model = harness.build_in_scope(harness.dense_model, 2)
    history = model.fit(data(), epochs=2, verbose=1, callbacks=[InputMonitor()]).history
    assert len(history["input_wait"]) == 2
    assert np.isfinite(history["input_wait"]).all()
    assert "input_wait" in capsys.readouterr().out
