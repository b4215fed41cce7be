import logging

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp

pytestmark = pytest.mark.slow

TEXTS = tf.constant(["a b", "c", "", "b b a c a", "z a", "a"])
NUMBERS = np.arange(6, dtype="float32")[:, None]


class Chosen(layers.Layer):
    def call(self, x):
        chosen = tf.boolean_mask(x, x[:, 0] > 0)
        return x + tf.reduce_sum(chosen @ tf.ones([6, 2]))


def lines(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "tfdp"]


def test_one_line_says_what_is_whole_in_which_layer_and_what_to_move(caplog):
    with harness.strategy(2).scope():
        texts = keras.Input((), dtype="string")
        pairs = layers.TextVectorization(
            vocabulary=["a b", "b"], ngrams=2, output_sequence_length=4, name="pairs"
        )(texts)
        found = layers.GlobalAveragePooling1D()(layers.Embedding(9, 6)(pairs))
        model = keras.Model(texts, layers.Dense(1)(found))
        model.compile("sgd", "mse")
    with caplog.at_level(logging.WARNING, "tfdp"):
        model.fit(TEXTS, NUMBERS, verbose=0)
        model.evaluate(TEXTS, NUMBERS, verbose=0)
        model.predict(TEXTS, verbose=0)
    (said,) = lines(caplog)
    assert said.startswith("StringNGrams in `functional")
    assert "/pairs" in said and "test_replicated_operations.py" not in said
    assert "The step's products stay divided." in said
    assert said.endswith("To have it divided, move it into the dataset's `map`.")


def test_the_line_of_a_layer_of_the_user_s_and_the_products_are_named(caplog):
    with harness.strategy(2).scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(6), Chosen(), layers.Dense(1)])
        model.compile("sgd", "mse")
    with caplog.at_level(logging.WARNING, "tfdp"):
        model.fit(np.ones([6, 4], "float32"), NUMBERS, verbose=0)
    said = [each for each in lines(caplog) if "products, " in each]
    assert said and "in test_program_build.py:" in said[0] and ", in call" in said[0]
    assert "which are divided otherwise" in said[0]
    for each in lines(caplog):
        assert "batch_0" not in each and "rule" not in each and "layout" not in each


def test_nothing_is_said_where_nothing_is_sent_and_no_product_is_whole(caplog):
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    with caplog.at_level(logging.WARNING, "tfdp"):
        partitioned = strategy.partitioned(
            lambda x: (x * 2, tf.linalg.diag(tf.ones([tf.shape(x)[0]])))
        )
        doubled, ones = partitioned(np.arange(5, dtype="float32"))
    np.testing.assert_array_equal(doubled, 2 * np.arange(5))
    np.testing.assert_array_equal(ones, np.eye(5))
    assert [each.operation for each in partitioned.report.whole] == ["MatrixDiagV3"]
    assert lines(caplog) == []
