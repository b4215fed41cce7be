"""What is cached is read once, is the same, and keeps its identity."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.data.sources.abstract import AbstractIndexedSource
from tfdp.data.sources.arrays import ArraySource
from tfdp.data.sources.cached import cached


class Squares(AbstractIndexedSource):
    """Squares, and how often each was read."""

    fingerprint = "squares"

    def __init__(self, length, vectorized, shape=()):
        self.vectorized = vectorized
        self.element_spec = {
            "number": tf.TensorSpec([], tf.int64),
            "name": tf.TensorSpec([], tf.string),
            "row": tf.TensorSpec(shape, tf.float32),
        }
        self.reads = np.zeros(length, int)

    def __len__(self):
        return len(self.reads)

    def describe(self):
        return "some squares"

    def rows(self, indices):
        def note(indices):
            self.reads[indices] += 1
            return indices

        indices = tf.reshape(tf.numpy_function(note, [indices], tf.int64), [-1])
        return {
            "number": indices**2,
            "name": tf.strings.as_string(indices),
            "row": tf.zeros(tf.shape(indices)),
        }


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("length", [1, 255, 600])
def test_all_examples_are_read_once(vectorized, length):
    source = Squares(length, vectorized)
    kept = cached(source)
    assert (source.reads == 1).all()
    chosen = np.random.default_rng(0).integers(0, length, 50)
    rows = kept.rows(tf.constant(chosen))
    np.testing.assert_array_equal(rows["number"], chosen**2)
    assert [name.decode() for name in rows["name"].numpy()] == [str(index) for index in chosen]
    assert (source.reads == 1).all()
    assert kept.element_spec == source.element_spec
    assert (kept.fingerprint, kept.describe(), len(kept)) == ("squares", "some squares", length)


def test_arrays_are_in_memory_already():
    source = ArraySource(np.arange(3))
    assert cached(source) is source


def test_what_does_not_fit_is_refused_before_it_is_read():
    source = Squares(600, True)
    size = 600 * (8 + 4)
    with pytest.raises(ValueError, match=f"600 examples take {size} bytes.*memory_bytes={size}"):
        cached(source, memory_bytes=size - 1)
    assert (source.reads == 0).all()
    cached(source, memory_bytes=size)


def test_examples_of_several_shapes_are_refused():
    with pytest.raises(ValueError, match="must have one shape, known beforehand"):
        cached(Squares(3, True, shape=(None,)))
