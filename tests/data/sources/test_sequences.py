"""Python objects with a length and items."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfdp.data.sources.sequences import SequenceSource


class Items:
    """Gives the examples of a list by index, and counts how often."""

    def __init__(self, examples):
        self.examples = examples
        self.asked = []

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.examples[index]


class Batched(Items):
    """Gives several at once, as the data sources of TensorFlow Datasets do."""

    def __getitems__(self, indices):
        self.asked.append(tuple(indices))
        return [self.examples[index] for index in indices]


EXAMPLES = [
    {"x": np.full([2, 3], index, np.float32), "y": (index, f"word {index}"), "z": [1.0, index]}
    for index in range(5)
]


def read(source, indices):
    dataset = tf.data.Dataset.from_tensors(np.asarray(indices, np.int64)).map(source.rows)
    (rows,) = dataset.as_numpy_iterator()
    return rows


def refused(source, indices):
    """The message of the error of reading those."""
    with pytest.raises(tf.errors.OpError) as error:
        read(source, indices)
    return str(error.value)


@pytest.mark.parametrize("kind", [Items, Batched])
def test_rows_are_the_items(kind):
    source = SequenceSource(kind(EXAMPLES))
    assert source.element_spec == {
        "x": tf.TensorSpec([2, 3], tf.float32),
        "y": (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)),
        "z": tf.TensorSpec([2], tf.float64),
    }
    rows = read(source, [4, 0, 4])
    np.testing.assert_array_equal(rows["x"][:, 0, 0], [4, 0, 4])
    np.testing.assert_array_equal(rows["y"][0], [4, 0, 4])
    assert rows["y"][1].tolist() == [b"word 4", b"word 0", b"word 4"]
    np.testing.assert_array_equal(rows["z"], [[1, 4], [1, 0], [1, 4]])


@pytest.mark.parametrize("kind", [Items, Batched])
def test_a_row_is_an_item_with_its_shape(kind):
    source = SequenceSource(kind(EXAMPLES))
    dataset = tf.data.Dataset.range(5).map(source.row)
    assert dataset.element_spec == source.element_spec
    assert [example["y"][0] for example in dataset.as_numpy_iterator()] == [0, 1, 2, 3, 4]


def test_an_object_that_gives_several_at_once_is_asked_once():
    items = Batched(EXAMPLES)
    source = SequenceSource(items)
    read(source, [3, 1])
    assert source.vectorized
    assert items.asked == [0, (3, 1)]
    assert not SequenceSource(Items(EXAMPLES)).vectorized


def test_no_index_gives_no_row():
    assert read(SequenceSource(Items(EXAMPLES)), [])["x"].shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("strange", "received"),
    [
        (np.zeros([3]), "example 2 of a Items of 3 examples is float64 [3]."),
        (np.zeros([2], np.float32), "example 2 of a Items of 3 examples is float32 [2]."),
        ((np.zeros([2]),), "example 2 of a Items of 3 examples is ('float64 [2]',)."),
        ("abc", "example 2 of a Items of 3 examples is string []."),
    ],
    ids=["shape", "dtype", "structure", "string"],
)
def test_an_example_unlike_the_first_is_named(strange, received):
    source = SequenceSource(Items([np.zeros([2]), np.ones([2]), strange]))
    read(source, [0, 1])
    message = refused(source, [0, 2])
    assert "Every example must be like the first, float64 [2], but " + received in message
    assert "Convert, pad or resize it in `__getitem__`." in message


def test_an_example_that_is_no_array_is_refused():
    assert "but received a NoneType" in refused(SequenceSource(Items([1, None])), [1])
    with pytest.raises(TypeError, match="but received a object"):
        SequenceSource(Items([object()]))


def test_too_few_of_several_are_refused():
    class Short(Batched):
        def __getitems__(self, indices):
            return super().__getitems__(indices)[1:]

    message = refused(SequenceSource(Short(EXAMPLES)), [1, 2])
    assert "as many examples as it is asked for, but received 1 for 2" in message


def test_what_is_no_sequence_or_empty_is_refused():
    with pytest.raises(
        TypeError, match="must have `__len__` and `__getitem__`, but received a gen"
    ):
        SequenceSource(item for item in range(3))
    with pytest.raises(ValueError, match="the length of the Items is 0"):
        SequenceSource(Items([]))


def test_the_fingerprint_is_of_length_and_spec_or_as_given():
    first = SequenceSource(Items(EXAMPLES)).fingerprint
    assert SequenceSource(Items(EXAMPLES[::-1])).fingerprint == first
    assert SequenceSource(Items(EXAMPLES[:-1])).fingerprint != first
    assert SequenceSource(Items([0] * 5)).fingerprint != first
    assert SequenceSource(Items(EXAMPLES), fingerprint="words 1.0").fingerprint == "words 1.0"
    assert not re.search("0x", first)


def test_it_says_what_it_is():
    assert SequenceSource(Items(EXAMPLES)).describe() == "a Items of 5 examples"
