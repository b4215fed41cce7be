"""Stateful recurrent layers, and inputs of a fixed batch size: each replica has its own rows."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

RNG = np.random.default_rng(3)
X = RNG.normal(size=(16, 4, 3)).astype("float32")
Y = X[:, 0, :1] + 0.5


def compiled(*recurrent, size=8):
    stack = [keras.Input(batch_shape=(size, 4, 3)), *recurrent, layers.Dense(1)]
    model = keras.Sequential(stack)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def of_two_layers():
    stacked = [layers.SimpleRNNCell(2), layers.SimpleRNNCell(3)]
    return compiled(
        layers.LSTM(3, stateful=True, return_sequences=True), layers.RNN(stacked, stateful=True)
    )


def above_a_layer():
    """The gradient goes through a loop that begins with a state, into what is below it."""
    return compiled(layers.Dense(3), layers.LSTM(4, stateful=True))


def in_both_directions():
    return compiled(layers.Bidirectional(layers.GRU(2, stateful=True)), size=2)


def without_state():
    return compiled(layers.SimpleRNN(3))


def use(model):
    size = model.inputs[0].shape[0]
    seen = {
        "fit": harness.fit_arrays(model, X, Y, batch_size=size, epochs=2),
        "evaluate": model.evaluate(X, Y, batch_size=size, verbose=0),
        "predict": model.predict(X, batch_size=size, verbose=0),
    }
    for layer in model._flatten_layers():
        if isinstance(layer, layers.LSTM) and layer.stateful:
            layer.reset_state()
    return seen | {"again": model.predict(X[:size], batch_size=size, verbose=0)}


MODELS = {
    "two layers": of_two_layers,
    "above a layer": above_a_layer,
    "in both directions, batches of fewer examples than replicas": in_both_directions,
    "a fixed size without state": without_state,
}


@pytest.mark.parametrize("name", tiers.cases(MODELS, ["above a layer"]))
def test_each_replica_goes_on_from_its_own_rows(name, trains_as_one_device):
    trains_as_one_device(MODELS[name], use)


# More entries of a kernel than a replica makes summands of without a reason.
WIDE = 24


def of_tokens(*stack):
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *stack, layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def tokens():
    return layers.Embedding(50, WIDE, mask_zero=True)


def masked_in_both_directions():
    inner = layers.LSTM(WIDE, dropout=0.1, return_sequences=True, zero_output_for_mask=True)
    return of_tokens(tokens(), layers.Bidirectional(inner), layers.GRU(WIDE, go_backwards=True))


def cells_in_a_stack():
    stack = [layers.LSTMCell(WIDE), layers.GRUCell(WIDE), layers.SimpleRNNCell(2 * WIDE)]
    return of_tokens(tokens(), layers.RNN(stack))


def convolutions():
    inner = layers.ConvLSTM1D(8, 3, recurrent_dropout=0.2)
    return of_tokens(tokens(), layers.Reshape((6, 4, 6)), inner, layers.Flatten())


def dense():
    return of_tokens(layers.Embedding(50, WIDE), layers.Flatten(), layers.Dense(4 * WIDE))


RECURRENT = {
    "masked, in both directions": masked_in_both_directions,
    "cells in a stack": cells_in_a_stack,
    "convolutions": convolutions,
}


@pytest.mark.parametrize("name", tiers.first_of(*RECURRENT))
def test_recurrent_layers_send_as_often_as_dense_ones(name, replicas, trains_as_one_device):
    x = RNG.integers(1, 50, size=(10, 6)).astype("int32")
    x[::3, 4:] = 0

    def use(model):
        seen = harness.fit_arrays(model, x, Y[:10], batch_size=4)
        if hasattr(model.distribute_strategy, "explain"):
            sent.append(model.distribute_strategy.explain(model).collectives)
        return seen

    sent = []
    trains_as_one_device(RECURRENT[name], use)
    use(harness.build_in_scope(dense, replicas))
    of_recurrent, of_dense = sent
    assert [each.within for each in of_recurrent] == [""] * len(of_dense)


def test_states_that_do_not_fit_are_errors_as_on_one_device(replicas):
    def lazy():
        model = keras.Sequential([layers.LSTM(3, stateful=True), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    for count in (None, replicas):
        model = harness.build_in_scope(lazy, count)
        with pytest.raises(ValueError, match="batch"):
            harness.fit_arrays(model, X, Y)
        model = harness.build_in_scope(lambda: compiled(layers.GRU(2, stateful=True)), count)
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            model.predict(X[:15], batch_size=8, verbose=0)
