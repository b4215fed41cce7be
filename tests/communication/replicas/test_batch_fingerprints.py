"""Fingerprints of batches differ where their first or last rows do, whatever their kind."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.communication.replicas import batch_fingerprints

DTYPES = (
    *("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32"),
    *("float64", "complex64", "complex128"),
)


def of(leaf):
    """The fingerprint of a leaf, in a graph, as a dataset makes it."""
    (found,) = tf.data.Dataset.from_tensors(leaf).map(lambda x: batch_fingerprints.of_leaves(x))
    return int(found[0])


def alike_but(at, make):
    """A batch of five rows twice, and with another row at this place."""
    numbers = np.arange(15).reshape(5, 3) % 2
    other = numbers.copy()
    other[at, 1] = 1 - other[at, 1]
    return make(numbers), make(numbers.copy()), make(other)


def sparse(numbers):
    return tf.sparse.from_dense(tf.constant(numbers + 1))


def ragged(numbers):
    return tf.RaggedTensor.from_row_lengths(numbers.ravel(), [3, 2, 4, 1, 5])


KINDS = {
    **{dtype: lambda numbers, d=dtype: tf.cast(numbers, d) for dtype in DTYPES},
    "sparse": sparse,
    "ragged": ragged,
    "texts": tf.strings.as_string,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_and_the_last_row_tell(kind):
    for at in (0, -1):
        one, again, other = (of(each) for each in alike_but(at, KINDS[kind]))
        assert one == again
        assert one != other
        assert 0 <= one < 2**31


def test_no_text_has_one_fingerprint():
    for leaf in (tf.zeros([0], tf.string), tf.zeros([4, 0], tf.string), sparse_texts(), no_words()):
        found = set()
        for number in range(8):  # in memory that others have used
            of(tf.fill([2, 3], f"{number}"))
            found |= {of(leaf), int(batch_fingerprints.of_leaves([leaf])[0])}
        assert len(found) == 1


def sparse_texts():
    return tf.sparse.from_dense(tf.fill([4, 2], ""))


def no_words():
    return tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.string), [0, 0, 0])


def test_sizes_places_and_scalars_tell():
    rows = np.arange(6, dtype="float32").reshape(3, 2)
    every = [rows, rows[[0, 1, 1, 2]], rows.reshape(3, 2, 1), rows[::-1], rows[:, ::-1], rows[:0]]
    found = [of(tf.constant(each)) for each in [*every, 1.0, 2.0, rows[0]]]
    assert len({*found}) == len(found)


def test_large_rows_are_looked_at_all_over():
    rows = np.zeros([2, 40000], "float32")
    changed = rows.copy()
    changed[0, 30000:32000] = 1.0
    assert of(tf.constant(rows)) != of(tf.constant(changed))


def test_a_leaf_that_is_none_has_its_place():
    assert batch_fingerprints.of_leaves((tf.range(3), None)).shape == [2]
    assert batch_fingerprints.names([1, {"a": 2}]) == ["x/0", "x/1/a"]
    assert batch_fingerprints.names((1, [2, 3], None)) == ["x", "y/0", "y/1", "sample_weight"]
