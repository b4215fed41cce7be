"""What is known of a model before it is timed, and how often its passes run."""

from types import SimpleNamespace

import keras
import pytest

from tfdp.plan import measuring


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


@pytest.mark.parametrize(
    ("of_each", "runs", "seconds"),
    [([60, 40, 20], 3, 20), ([9, 1, 1, 1, 1], 4, 1), ([0] * 200, 100, 0)],
)
def test_a_pass_runs_three_times_or_three_seconds(monkeypatch, of_each, runs, seconds):
    now, taken = [0.0], []

    def run():
        taken.append(of_each[len(taken)])
        now[0] += taken[-1]
        return keras.ops.zeros([1])

    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert measuring._seconds(run) == (of_each[0], seconds)
    assert len(taken) == runs
