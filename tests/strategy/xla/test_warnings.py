"""What is said where a program is compiled once more, and where devices do not divide a batch."""

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

X, Y = np.ones([24, 4], np.float32), np.ones([24, 1], np.float32)


def fit(strategy, batch_size, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **options)
    model.fit(X, Y, batch_size=batch_size, verbose=0)
    return model


def test_another_size_is_named(on_devices, caplog):
    fit(on_devices(2), 16)
    assert "train_step is compiled once more" in caplog.text
    assert "shapes [(8, 4), (8, 1)]" in caplog.text
    assert "drop_remainder=True" in caplog.text


def test_lengths_that_differ_are_said_once_with_what_to_do(on_devices, caplog):
    strategy = on_devices(2)
    with strategy.scope():
        layers = [keras.layers.Dense(1), keras.layers.GlobalAveragePooling1D()]
        model = keras.Sequential([keras.Input([None, 2]), *layers])
        model.compile("sgd", "mse")
    for length in (3, 4, 5):
        x = np.ones([8, length, 2], np.float32)
        model.fit(x, Y[:8], batch_size=8, verbose=0)
        model.evaluate(x, Y[:8], batch_size=8, verbose=0)
        model.predict(x, batch_size=8, verbose=0)
    assert caplog.text.count("compiled once more") == 1
    assert "pad_to_bucket_boundary=True" in caplog.text
    assert "drop_remainder" not in caplog.text


def test_other_dtypes_are_not_taken_for_other_sizes(on_devices, caplog):
    strategy = on_devices(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    strategy.compile_ahead(model, (tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1], tf.int32)))
    model.fit(X, Y, batch_size=8, verbose=0)
    assert "dtypes ['float32', 'float32'], and was for ['float32', 'int32']" in caplog.text
    assert "drop_remainder" not in caplog.text


def test_steps_that_remain_are_not_taken_for_other_sizes(on_devices, caplog):
    fit(on_devices(2), 8, steps_per_execution=2)
    assert "for 1 of its steps in one call, and was for 2" in caplog.text
    assert "drop_remainder" not in caplog.text


def test_other_values_of_python_are_not_taken_for_other_sizes(on_devices, caplog):
    scaled = on_devices(2).partitioned(lambda x, by: x * by)
    for by in (2.0, 3.0):
        np.testing.assert_array_equal(scaled(X, by=by), by * X)
    assert "other values of Python" in caplog.text
    assert "drop_remainder" not in caplog.text


@pytest.mark.parametrize(
    "rows, said",
    [(8, None), (6, "computed whole by each of the 4 devices"), (3, "computed whole by each")],
)
def test_a_batch_that_devices_do_not_divide_is_named(on_devices, caplog, rows, said):
    on_devices(4).partitioned(lambda x: x + 1)(tf.ones([rows]))
    assert said is None or said in caplog.text
    assert said is not None or "devices" not in caplog.text


@pytest.mark.parametrize("seconds, said", [(0.0, True), (1e6, False)])
def test_a_program_that_takes_long_is_said_to_be_compiled(on_devices, caplog, seconds, said):
    from tfdp.strategy.xla.warnings import compiling

    before = threading.enumerate()
    with compiling(on_devices(2).extended.layouts, seconds):
        while said and "still compiles a program for 2 x cpu" not in caplog.text:
            time.sleep(0.01)
    assert ("still compiles" in caplog.text) is said
    left = {*threading.enumerate()} - {*before}
    assert not [each for each in left if isinstance(each, threading.Timer)]
