"""Collectives that share functions: right sums, and one group of ranks for all."""

import harness
import keras
import numpy as np
from group_keys import group_keys

from tfdp.base import unique_numbers

__all__ = ["group_keys"]


def test_a_model_with_embeddings_has_one_group_key(group_keys, monkeypatch):
    """NCCL makes a communicator for each, and keeps it; the rows of embeddings vary in number."""
    monkeypatch.setitem(unique_numbers._given, "calls of varying shape", 0)  # whatever ran before
    strategy = harness.strategy(2)
    with strategy.scope():
        tokens = keras.Input([4], dtype="int32")
        first = keras.layers.Embedding(50_000, 3)(tokens)
        second = keras.layers.Embedding(50_000, 2)(tokens)
        joined = keras.layers.Flatten()(keras.layers.Concatenate()([first, second]))
        model = keras.Model(tokens, keras.layers.Dense(1)(joined))
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).integers(0, 11, (20, 4)).astype("int32")
    y = np.ones([20, 1], "float32")
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)  # the last batch is shorter
    model.evaluate(x, y, batch_size=7, verbose=0)
    model.predict(x, batch_size=8, verbose=0)
    assert len(group_keys) == 1
