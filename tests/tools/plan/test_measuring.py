"""What is known of a model before it is timed, and how often its passes run."""

import time
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tfdp.tools.plan import measuring
from tfdp.tools.prediction import Normalized


def test_the_work_of_a_kernel_counts_where_it_is_applied():
    model = keras.Sequential(
        [
            keras.Input([8, 8, 3]),
            keras.layers.Conv2D(4, 3, padding="same"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    kernel, bias, dense, _ = measuring.tensors_of(model)
    assert (kernel.shape, kernel.work) == ((3, 3, 3, 4), 108 * 64)
    assert bias.work == 4 * 64
    assert (dense.shape, dense.work) == ((256, 2), 512)


def test_a_model_within_a_model_and_a_table_are_counted():
    inner = keras.Sequential([keras.Input([6, 5]), keras.layers.Dense(7)])
    model = keras.Sequential([keras.Input([6]), keras.layers.Embedding(100, 5), inner])
    table, kernel, _ = measuring.tensors_of(model, batch=4)
    assert (table.elements, table.work, table.rows) == (500, 5 * 6, 4 * 6)
    assert kernel.work == 5 * 7 * 6


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (lambda: keras.optimizers.SGD(0.1), 0),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1),
        (lambda: keras.optimizers.Adam(), 2),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), 2),
    ],
)
def test_the_optimizer_of_a_compiled_model_is_known(make, slots):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(make(), "mse")
    assert measuring.workload(model, 2, None, timed=False).slots == slots
    assert measuring.workload(model, 2, "adam", timed=False).slots == 2


def test_layers_with_statistics_of_the_batch_are_found():
    kind = keras.layers.BatchNormalization
    hidden = [kind(), kind(synchronized=True), kind(trainable=False)]
    inner = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), *hidden])
    model = keras.Sequential([keras.Input([4]), inner, keras.layers.Dense(1)])
    found = measuring.workload(model, 2, None, timed=False).normalized
    assert found == (Normalized(3), Normalized(3, is_plain=False))


@pytest.mark.parametrize(
    ("of_each", "runs", "seconds"),
    [
        ([60, 40, 20], 2, 40),
        ([9, 2, 1, 1], 3, 1),
        ([9, 5e-1, 2, 1, 1], 4, 1.5),
        ([0] * 200, 100, 0),
    ],
)
def test_after_a_first_run_a_pass_runs_three_seconds_or_once(monkeypatch, of_each, runs, seconds):
    now, taken = [0.0], []

    def run():
        taken.append(of_each[len(taken)])
        now[0] += taken[-1]
        return keras.ops.zeros([1])

    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert measuring._seconds(run) == of_each[:runs] == taken
    assert measuring._usual(taken) == seconds


def test_the_passes_are_told_apart(monkeypatch):
    """The forward pass waits half a second, and its gradient a second."""

    @tf.custom_gradient
    def slow(x):
        def gradient(upstream):
            return tf.numpy_function(waited(1.0), [upstream], tf.float32)

        return tf.ensure_shape(tf.numpy_function(waited(0.5), [x], tf.float32), x.shape), gradient

    def waited(seconds):
        def wait(x):
            time.sleep(seconds)
            return x

        return wait

    class Slow(keras.layers.Layer):
        def call(self, x):
            return slow(x)

    monkeypatch.setattr(measuring, "_SECONDS", 0.0)
    dense = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input([4]), dense, Slow()])
    work = measuring.workload(model, 2, None)
    assert work.forward_seconds > 0.4
    assert work.backward_seconds > 0.9
    assert work.update_seconds > 0
