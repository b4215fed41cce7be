"""Replicas whose weights part are named at the end of the epoch in which they did."""

import functools
import logging
import re

import harness
import keras
import meeting
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.communication.replicas import OneProcess
from tfdp.keras.trainer import replica_check

X, Y = harness.regression_data(16)


class Parting(keras.callbacks.Callback):
    """Writes another value to each replica's copies, which a program does not."""

    def on_epoch_begin(self, epoch, logs=None):
        processes = self.model.distribute_strategy.extended.processes
        for variable in self.model.weights:
            for place, copy in enumerate(variable.value.values):
                replica = processes.rank * processes.local_size + place
                copy.assign_add(tf.fill(copy.shape, 0.1 * replica))


def dense():
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3, name="wide"), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.telling
def test_weights_that_part_are_named_once_with_their_difference(caplog):
    replicas = harness.CLUSTER_REPLICAS or 3
    model = harness.build_in_scope(dense, replicas)
    biases = []  # the smallest of the four weights

    def note(epoch, logs):
        biases.append(harness.components(model.weights[3]))

    with caplog.at_level(logging.WARNING, logger="tfdp"):
        noting = keras.callbacks.LambdaCallback(on_epoch_end=note)
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[Parting(), noting])
    said = [r.getMessage() for r in caplog.records if "have the same weights" in r.getMessage()]
    if model.distribute_strategy.rank != 0:
        assert said == []
        return
    (text,) = said
    found = re.search(
        r"after epoch 1 the value of '(.*)', and of 3 more variables, is another one on replica 1 "
        r"than on replica 0, by up to (\S+) where the largest is (\S+)\. ",
        text,
    )
    assert found and "bias" in found[1]
    first, *others = biases[0]
    if others:  # in this process; each number is told by its first digit
        expected = abs(others[0] - first).max(), abs(first).max()
        np.testing.assert_allclose([float(found[2]), float(found[3])], expected, rtol=0.4)


class Rank:
    """One of two processes with two replicas each, by its board."""

    world_size, local_size = 2, 2

    def __init__(self, board):
        self.rank, self.all_gather = board.rank, board.all_gather


class Replicated:
    """A variable with a copy on each replica of a process."""

    def __init__(self, *values):
        self.values = [tf.constant(value) for value in values]


@harness.in_one_process
def test_all_ranks_find_the_first_replica_with_another_copy():
    alike = Replicated(1.0, 1.0)
    of_ranks = [
        {"weight-0": alike, "weight-1": alike, "weight-2": Replicated(1.0, 2.0), "other-0": alike},
        {
            "weight-0": Replicated(3.0, 1.0),
            "weight-1": Replicated(1.0, 3.0),
            "weight-2": alike,
            "other-0": Replicated(4.0, 4.0),  # one of its own, so that their numbers say nothing
            "other-1": alike,
        },
    ]
    with meeting.boards(2) as boards:
        calls = [
            functools.partial(replica_check._parted, variables, Rank(board))
            for variables, board in zip(of_ranks, boards, strict=True)
        ]
        found = meeting.on_all(*calls)
    assert found == [{"weight-0": 2, "weight-1": 3, "weight-2": 1}] * 2


@harness.in_one_process
def test_copies_are_equal_by_their_bits():
    empty = tf.zeros([0, 3])
    variables = {
        "weight-0": Replicated(empty, empty),
        "weight-1": Replicated(float("nan"), float("nan")),
        "weight-2": Replicated(*[tf.constant([1.0, 2.0], tf.bfloat16)] * 2),
        "weight-3": Replicated([True, False], [True, True]),
    }
    assert replica_check._parted(variables, OneProcess(local_size=2)) == {"weight-3": 1}


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
    model = harness.build_in_scope(whole, 3)
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert "have the same weights" not in caplog.text


def test_callbacks_that_are_given_as_a_list_of_keras_are_compared_too(caplog):
    model = harness.build_in_scope(dense, 2)
    given = keras.callbacks.CallbackList(
        [Parting()], add_history=True, model=model, epochs=1, steps=2
    )
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=given)
    assert "have the same weights" in caplog.text
