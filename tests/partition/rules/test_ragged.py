import keras
import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.examples import in_shares
from partition.samples import sample

from tfdp.partition.program_record import AFTER, PRODUCTS, WHOLE

pytestmark = pytest.mark.slow

TEXTS = np.array([b"a b c", b"", b"c", b"b b  a", b"z", b"a", b"c a b a b"])
WORDLESS = np.array([b"", b" ", b"", b"a b"])
NONE = TEXTS[:0]
W = np.arange(1, 16, dtype=np.float32).reshape(5, 3)

batches = pytest.mark.parametrize(
    ("batch", "replicas"),
    [(TEXTS, [3]), (TEXTS[:1], [2]), (WORDLESS, [3]), (NONE, [2])],
    ids=["uneven", "empty shares", "shares without words", "no texts"],
)


def undivided(report):
    """The products that every replica computes alike, though they are of the batch."""
    computed = [each for each in report.computed if each.place in (WHOLE, AFTER)]
    return [each.operation for each in computed if each.operation in PRODUCTS]


def vectorized(mode, **options):
    words = ["a", "b", "c"]
    if mode == "tf_idf":
        options["idf_weights"] = [1.0, 2.0, 3.0]
    return keras.layers.TextVectorization(vocabulary=words, output_mode=mode, **options)


MODES = {
    "int": lambda: vectorized("int"),
    "int of a length": lambda: vectorized("int", output_sequence_length=5),
    "multi_hot": lambda: vectorized("multi_hot"),
    "count": lambda: vectorized("count"),
    "tf_idf": lambda: vectorized("tf_idf"),
}


@batches
@pytest.mark.parametrize("make", MODES.values(), ids=MODES)
def test_each_replica_splits_counts_and_pads_its_own_texts(make, batch, replicas):
    layer = make()

    def function(texts):
        found = layer(texts)
        if found.dtype.is_integer:
            return found, tf.reduce_sum(tf.gather(W, found), 1) @ W[:3]
        return found, found @ W[:4]

    report = check(function, batch, replicas=tuple(replicas))
    assert undivided(report) == []
    sent = [each for each in report.exchanged if each.kind == "gather" and each.makes_whole]
    assert sent == []  # no texts, and no words


def ragged(texts):
    return tf.strings.split(texts).to_tensor("-")


WHOLE_ONES = {
    "pairs of words": lambda x: tf.strings.ngrams(tf.strings.split(x), 2).to_tensor("-"),
    "characters": lambda x: tf.strings.unicode_split(x, "UTF-8").to_tensor("-"),
    "codes": lambda x: tf.strings.unicode_decode(x, "UTF-8").to_tensor(),
}


@in_shares
@pytest.mark.parametrize("function", WHOLE_ONES.values(), ids=WHOLE_ONES)
def test_what_is_split_whole_is_cut_again_where_it_has_rows(function, length, replicas):
    def products(texts):
        found = function(texts)
        numbers = found if found.dtype.is_integer else tf.strings.length(found)
        numbers = tf.cast(numbers, tf.float32)
        return numbers, tf.reduce_sum(numbers, 1, keepdims=True) @ W[:1]

    report = check(products, TEXTS[:length], replicas=tuple(replicas), whole=None)
    assert undivided(report) == []


@sample(TEXTS, whole=None)
def test_words_are_split_in_functions_that_the_program_calls_and_in_branches(texts):
    called = tf.function(ragged)(texts)
    chosen = tf.cond(tf.size(texts) > 2, lambda: ragged(texts), lambda: texts[:, None])
    return called, chosen


@sample(TEXTS, whole=None)
def test_splits_of_words_count_them_and_weigh_them(texts):
    words = tf.strings.split(texts)
    lengths = words.row_lengths()
    numbers = tf.ragged.map_flat_values(lambda x: tf.strings.length(x) % 3, words)
    weights = tf.ragged.map_flat_values(lambda x: tf.cast(x + 1, tf.float32), numbers)
    counted = tf.math.bincount(numbers, minlength=3, maxlength=3, axis=-1)
    weighted = tf.math.bincount(numbers, weights, minlength=3, maxlength=3, axis=-1)
    return lengths, words.row_splits, words.nrows(), counted, weighted, words
