"""cuDNN's recurrent layers: what replicas make of them; GPUs alone can run it."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from partition.check import strategy

layers = keras.layers


@pytest.fixture(autouse=True)
def as_with_a_gpu(monkeypatch):
    """Keras takes cuDNN's operations, which are traced without a GPU, too."""
    # The package has a function of the same name.
    module = sys.modules["keras.src.backend.tensorflow.rnn"]
    monkeypatch.setattr(module, "_is_gpu_available", lambda: True)


def explained(layer, masked):
    """What a training step exchanges, and what it computes whole."""
    with strategy(3).scope():
        table = layers.Embedding(9, 4, mask_zero=masked)
        model = keras.Sequential([keras.Input([5], dtype="int32"), table, layer, layers.Dense(1)])

    @strategy(3).partitioned
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    return step.explain(np.ones([7, 5], "int32"), np.ones([7, 1], "float32"))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_each_replica_computes_the_sequences_of_its_own_rows(kind, masked):
    found = explained(layers.Bidirectional(kind(3)), masked)
    assert not found.whole
    gathered = [each for each in found.collectives if each.kind == "gather"]
    assert {each.kind for each in found.collectives} <= {"gather", "sum"}
    # Keras asserts that all masks are right-padded: whether each replica's are.
    assert len(gathered) == (4 if masked else 0)
    assert all(each.size_bytes == 3 for each in gathered)


def test_a_layer_with_dropout_within_is_computed_once(monkeypatch):
    """cuDNN draws by the order of the batch."""
    own = tf.raw_ops.CudnnRNNV3
    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", lambda **given: own(**given, dropout=0.5))
    found = explained(layers.LSTM(3), masked=False)
    assert "from first" in {each.kind for each in found.collectives}


def stand_in(input, input_h, **given):
    """Takes cuDNN's place on a CPU, with other numbers."""
    outputs = tf.zeros([*tf.unstack(tf.shape(input))[:2], input_h.shape[-1]])
    return outputs, input_h, input_h, None, None


def test_masks_that_are_not_right_padded_are_refused_as_on_one_device(monkeypatch):
    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", stand_in)
    layer = layers.LSTM(3)
    layer.build([None, 4, 2])

    def run(x, mask):
        return layer(x, mask=mask)

    x = tf.ones([5, 4, 2])
    left = tf.constant([[True] * 4] * 4 + [[False, True, True, True]])
    right = tf.reverse(left, [1])
    assert run(x, left).shape == [5, 3]  # eagerly Keras takes its own loop in cuDNN's place
    with strategy(2).scope():
        layer = layers.LSTM(3)
        layer.build([None, 4, 2])
    for each in (tf.function(run, autograph=False), strategy(2).partitioned(run)):
        assert each(x, right).shape == [5, 3]
        with pytest.raises(tf.errors.InvalidArgumentError, match="right-padded"):
            each(x, left)
