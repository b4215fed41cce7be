"""What runs on the host in a strategy's scope, outside of programs, is one device's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=[12, 4]).astype("float32"), RNG.normal(size=[12, 1]).astype("float32")


def model():
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return made


def a_loop(made):
    loss = keras.losses.MeanSquaredError()
    losses = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            losses.append(loss(Y, made(X)))
        gradients = tape.gradient(losses[-1], made.trainable_variables)
        made.optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))
    return losses


def keras_own_step(made):
    return [made.train_step((X, Y))["loss"], made.test_step((X, Y))["loss"]]


@pytest.mark.parametrize("run", [a_loop, tf.function(a_loop, autograph=False), keras_own_step])
def test_losses_and_updates_are_those_of_one_device(on_devices, run):
    one = model()
    expected = getattr(run, "python_function", run)(one)
    with on_devices(4).scope():
        found = model()
        losses = run(found)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for each, weight in zip(one.get_weights(), found.get_weights(), strict=True):
        np.testing.assert_allclose(weight, each, rtol=1e-6)


def test_what_a_program_returned_is_reduced_over_an_axis_as_on_one_device(on_devices):
    values = {"a": tf.constant([[1.0, 3.0], [5.0, 7.0]]), "b": tf.constant([2.0, 4.0])}
    strategy, one = on_devices(2), tf.distribute.get_strategy()
    for how in ("SUM", "mean", tf.distribute.ReduceOp.MEAN):
        for axis in (None, 0):
            found = strategy.reduce(how, values, axis)
            for name, value in values.items():
                np.testing.assert_array_equal(found[name], one.reduce(how, value, axis))
