"""What `Telemetry` writes where XLA compiles the step, against what is known of the program."""

import keras
import numpy as np
import pytest
from callbacks.telemetry_lines import lines

import tfdp
from tfdp.tools.cli import main

X, Y = np.ones([20, 4], np.float32), np.ones([20, 1], np.float32)


@pytest.fixture
def strategy():
    """A strategy on two devices."""
    jax = pytest.importorskip("jax")
    return tfdp.XLAStrategy(jax.devices()[:2])


def steps_of(strategy, folder, x=X, y=Y, sample_every=2, **options):
    """Trains for two epochs, and returns the model and the lines of its steps."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **options)
    callback = tfdp.callbacks.Telemetry(folder, sample_every, tensorboard=False)
    model.fit(x, y, batch_size=None if y is None else 8, epochs=2, verbose=0, callbacks=[callback])
    return model, lines(folder)


def test_examples_and_what_is_sent_are_those_of_the_program(strategy, tmp_path):
    model, steps = steps_of(strategy, tmp_path)
    assert [line["examples"] for line in steps] == [8, 8, 4] * 2
    assert [line["steps"] for line in steps] == [1] * 6
    facts = strategy.explain(model)
    assert facts.collectives["all-reduce"] >= 1
    assert steps[-1]["collectives"] == facts.collectives
    # Gradients of five weights in 4 bytes and the loss, to each of the two devices.
    assert all(line["bytes_sent"] >= 2 * 4 * 5 for line in steps)
    assert steps[-1]["bytes_sent"] == 2 * facts.bytes_moved


def test_samples_alone_wait_for_the_devices(strategy, tmp_path):
    _, steps = steps_of(strategy, tmp_path)
    for number, line in enumerate(steps, start=1):
        assert ("compute_seconds" in line) == ("loss" in line) == (number % 2 == 0)
        assert 0 <= line["input_seconds"] <= line["seconds"]
        assert line.get("compute_seconds", 0) <= line["seconds"]


def test_the_loss_of_a_sample_is_that_of_a_training_on_one_device(strategy, tmp_path):
    keras.utils.set_random_seed(1)
    _, steps = steps_of(strategy, tmp_path, sample_every=1)
    keras.utils.set_random_seed(1)
    seen = []
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    see = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda b, logs: seen.append(logs["loss"])
    )
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[see])
    np.testing.assert_allclose([line["loss"] for line in steps], seen, rtol=1e-5)


@pytest.mark.exhaustive("test_examples_and_what_is_sent_are_those_of_the_program")
def test_an_execution_of_several_steps_is_a_line(strategy, tmp_path):
    _, steps = steps_of(strategy, tmp_path, steps_per_execution=2)
    assert [(line["steps"], line["examples"]) for line in steps] == [(2, 16), (1, 4)] * 2


@pytest.mark.exhaustive("test_examples_and_what_is_sent_are_those_of_the_program")
def test_batches_of_a_pipeline_are_counted_and_the_report_draws_them(strategy, tmp_path, capsys):
    data = tfdp.data.pipeline((X, Y), 8, seed=1)
    _, steps = steps_of(strategy, tmp_path, data, None)
    assert [line["examples"] for line in steps] == [8, 8, 4] * 2
    assert main(["report", str(tmp_path)]) == 0
    assert "6 steps of 1 rank" in capsys.readouterr().out
