"""Tracebacks of users' errors show the user's lines, and no frame of ours but one that raises."""

import pathlib
import traceback

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

OWN = str(pathlib.Path(tfdp.__file__).parent)


class Stops(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise RuntimeError("stops")


def model_in(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def fit_with_a_callback(strategy):
    model_in(strategy).fit(np.ones([8, 4]), np.ones([8, 1]), callbacks=[Stops()], verbose=0)


def fit_of_other_sizes(strategy):
    model_in(strategy).fit(np.ones([8, 5]), np.ones([8, 1]), verbose=0)


def stops(x):
    raise RuntimeError("stops")


def partitioned(strategy):
    strategy.partitioned(stops)(tf.ones([4, 2]))


def run(strategy):
    strategy.run(stops, (1,))


def frames_of(error):
    """Yields the files of the frames that are shown of an error, and of those it followed from."""
    while error is not None:
        yield [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("user", [fit_with_a_callback, fit_of_other_sizes, partitioned, run])
def test_errors_show_no_frame_of_ours_but_the_one_that_raised(user):
    with pytest.raises((RuntimeError, ValueError)) as raised:
        user(harness.strategy(2))
    first, *others = frames_of(raised.value)
    assert first[0] == __file__
    for files in (first, *others):
        assert not [name for name in files[:-1] if name.startswith(OWN)]


def multiplies(x):
    if tf.reduce_sum(x) > 0:  # a branch of the graph
        x = x @ tf.ones([7, 2])
    return x


def test_the_lines_that_autograph_tells_of_a_partitioned_function_are_its_own():
    with pytest.raises(ValueError, match="in user code:") as raised:
        harness.strategy(2).partitioned(multiplies)(tf.ones([4, 2]))
    said = str(raised.value)
    assert f'File "{__file__}"' in said and "x = x @ tf.ones([7, 2])" in said
    assert OWN not in said


def test_all_frames_are_kept_where_keras_is_told_so():
    keras.config.disable_traceback_filtering()
    try:
        with pytest.raises(RuntimeError) as raised:
            fit_with_a_callback(harness.strategy(2))
    finally:
        keras.config.enable_traceback_filtering()
    assert [n for files in frames_of(raised.value) for n in files if n.startswith(OWN)]
