"""Replicas whose weights part are named at the end of the epoch in which they did."""

import logging
import re

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

X, Y = harness.regression_data(16)


class Langevin(keras.optimizers.SGD):
    """SGD that adds what TensorFlow draws, which is another number on each replica."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.assign_add(variable, 0.01 * tf.random.normal(variable.shape))


def dense(optimizer):
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3, name="wide"), layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.telling
def test_weights_that_part_are_named_once_with_their_difference(caplog):
    replicas = harness.CLUSTER_REPLICAS or 3
    model = harness.build_in_scope(lambda: dense(Langevin(0.1)), replicas)
    differences = []

    def measure(epoch, logs):
        # The smallest of the four weights is the last bias.
        copies = harness.components(model.weights[3])
        differences.append((abs(copies[1] - copies[0]).max(), abs(copies[0]).max()))

    with caplog.at_level(logging.WARNING, logger="tfdp"):
        measuring = keras.callbacks.LambdaCallback(on_epoch_end=measure)
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[measuring])
    said = [r.getMessage() for r in caplog.records if "have the same weights" in r.getMessage()]
    if model.distribute_strategy.rank != 0:
        assert said == []
        return
    (text,) = said
    found = re.search(
        r"after epoch 1 the value of '(.*)', and of 3 more variables, is another one on replica 1 "
        r"than on replica 0, by up to (\S+) where the largest number is (\S+)\. ",
        text,
    )
    assert found and "bias" in found[1]
    if len(harness.components(model.weights[3])) > 1:
        np.testing.assert_allclose([float(found[2]), float(found[3])], differences[0], rtol=0.4)


def whole():
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)]
    )
    model.add(layers.Dense(1))
    adam = keras.optimizers.AdamW(0.01, use_ema=True, gradient_accumulation_steps=2)
    model.compile(adam, "mse", metrics=["mae"])
    return model


@harness.in_one_process
def test_of_weights_that_do_not_part_nothing_is_said(caplog):
    for build in (whole, lambda: dense(Langevin(0.1))):
        replicas = 3 if build is whole else 1
        model = harness.build_in_scope(build, replicas)
        with caplog.at_level(logging.WARNING, logger="tfdp"):
            model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert "have the same weights" not in caplog.text


def test_callbacks_that_are_given_as_a_list_of_keras_are_compared_too(caplog):
    model = harness.build_in_scope(lambda: dense(Langevin(0.1)), 2)
    given = keras.callbacks.CallbackList(add_history=True, model=model, epochs=1, steps=2)
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=given)
    assert "have the same weights" in caplog.text
