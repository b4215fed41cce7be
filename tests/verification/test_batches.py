"""Batches come from whatever `fit` takes, and are the same in every run."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.verification.batches import Batches, rows

X, Y = np.arange(8.0).reshape(4, 2), np.arange(4)


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)


SOURCES = {
    "list": lambda: [(X[:3], Y[:3]), (X[3:], Y[3:])],
    "generator": lambda: ((X[i : i + 2], Y[i : i + 2]) for i in (0, 2)),
    "dataset": dataset,
    "pipeline": lambda: tfdp.data.pipeline((X, Y), 2, seed=1),
    "PyDataset": lambda: Sequence(),
    "lists": lambda: [([X.tolist(), X][1:], Y.tolist())],
    "dict": lambda: [{"a": X, "b": Y}],
    "strings": lambda: [np.array(["a", "b"])],
    "ragged": lambda: [(tf.ragged.constant([[1], [2, 3]]), Y[:2])],
    "sparse": lambda: [(tf.sparse.from_dense(X), Y)],
}


@pytest.mark.parametrize("name", SOURCES)
def test_they_are_the_same_as_often_as_they_are_read(name):
    batches = Batches(SOURCES[name](), 3)
    first, second = ([*iter(batches.dataset())] for _ in range(2))
    assert len(first) == len(second) == 3
    for one, other in zip(tf.nest.flatten(first, True), tf.nest.flatten(second, True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert list(batches.described()) == ["number 1", "number 2", "number 3"]


def test_fewer_batches_than_steps_come_in_turn_again():
    batches = Batches(dataset(), 5)
    assert [rows(batch) for batch in batches.steps] == [3, 1, 3, 1, 3]
    assert batches.dataset().element_spec == dataset().element_spec


def test_a_pipeline_counts_nothing_as_trained():
    pipeline = tfdp.data.pipeline((X, Y), 2, seed=1)
    Batches(pipeline, 2)
    assert pipeline.is_fresh


def test_arrays_come_as_fit_would_give_them():
    ((x, y),) = Batches([(X, Y)], 1).dataset()
    assert (x.dtype, y.dtype) == (tf.float32, tf.int64)


def test_what_is_no_batch_is_refused():
    used = iter([(X, Y)])
    list(used)
    for given, kind, text in (
        (used, ValueError, "read before is empty"),
        ([], ValueError, "at least one batch"),
        ([(X[:0], Y[:0])], ValueError, "at least one example"),
        ((X, Y), TypeError, "which is one batch"),
        (X, TypeError, "which is one batch"),
        (3, TypeError, "which is one batch or none"),
        ([(X, None)], TypeError, "holds 'NoneType'"),
    ):
        with pytest.raises(kind, match=text):
            Batches(given, 3)
