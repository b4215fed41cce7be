"""Datasets of tf.data."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfdp.data.sources.streams import DatasetSource


def values(source):
    return [int(example) for example in source.examples()]


def test_the_examples_are_those_of_the_dataset_each_time():
    source = DatasetSource(tf.data.Dataset.range(5))
    assert values(source) == values(source) == [0, 1, 2, 3, 4]
    assert source.num_examples == 5
    assert source.element_spec == tf.TensorSpec([], tf.int64)


def test_a_filter_makes_the_number_unknown():
    source = DatasetSource(tf.data.Dataset.range(5).filter(lambda value: value > 1))
    assert source.num_examples is None
    assert values(source) == [2, 3, 4]
    assert source.describe() == "a tf.data.Dataset of an unknown number of examples"


def test_shapes_may_be_unknown():
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([np.zeros([2]), np.zeros([3, 1])]),
        output_signature=tf.TensorSpec(None, tf.float64),
    )
    source = DatasetSource(dataset)
    assert source.element_spec.shape.rank is None
    assert [example.shape for example in source.examples()] == [(2,), (3, 1)]


def test_ragged_and_nested_examples_are_kept():
    ragged = tf.ragged.constant([[1], [2, 3]])
    source = DatasetSource(tf.data.Dataset.from_tensor_slices({"x": ragged, "y": ([0, 1],)}))
    assert [example["x"].numpy().tolist() for example in source.examples()] == [[1], [2, 3]]


def test_a_parallel_map_keeps_the_order():
    unordered = tf.data.Options()
    unordered.deterministic = False
    source = DatasetSource(tf.data.Dataset.range(3).with_options(unordered))
    assert source.examples().options().deterministic


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset: dataset.batch(4),
        lambda dataset: dataset.batch(4, drop_remainder=True).prefetch(1),
        lambda dataset: dataset.shuffle(3).padded_batch(4).take(2),
        lambda dataset: dataset.ragged_batch(4).cache(),
        lambda dataset: dataset.batch(4).repeat(2),
    ],
)
def test_batches_are_refused(make):
    message = "but it gives batches of 4. Leave `.batch` out or use dataset.unbatch();"
    dataset = make(tf.data.Dataset.range(8))
    with pytest.raises(ValueError, match=re.escape(message)):
        DatasetSource(dataset)
    assert values(DatasetSource(dataset.unbatch()))


def test_a_batch_may_be_one_example():
    sequences = tf.data.Dataset.range(8).batch(4)
    source = DatasetSource(sequences.batch(1).unbatch())
    assert [example.numpy().tolist() for example in source.examples()] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_arrays_of_many_axes_are_no_batches():
    for dataset in (
        tf.data.Dataset.from_tensors(np.zeros([4, 3])),
        tf.data.Dataset.from_tensor_slices(np.zeros([4, 3])),
    ):
        assert DatasetSource(dataset).num_examples in (1, 4)


def test_what_does_not_end_or_begin_is_refused():
    with pytest.raises(ValueError, match=r"but it repeats for ever.* \.take\(examples_per_epoch\)"):
        DatasetSource(tf.data.Dataset.range(3).repeat())
    with pytest.raises(ValueError, match="must hold at least one example"):
        DatasetSource(tf.data.Dataset.range(0))
    with pytest.raises(TypeError, match=r"must be a tf\.data\.Dataset, but received a list"):
        DatasetSource([1, 2])


def test_the_fingerprint_is_of_number_and_spec():
    first = DatasetSource(tf.data.Dataset.range(5)).fingerprint
    assert DatasetSource(tf.data.Dataset.range(1, 6)).fingerprint == first
    others = [
        tf.data.Dataset.range(6),
        tf.data.Dataset.range(5).filter(lambda value: True),
        tf.data.Dataset.range(5, output_type=tf.int32),
        tf.data.Dataset.range(5).map(lambda value: {"x": value}),
    ]
    assert len({first, *(DatasetSource(other).fingerprint for other in others)}) == 5
