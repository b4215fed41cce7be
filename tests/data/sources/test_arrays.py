"""Arrays and nests of them: what is read is what NumPy's indexing gives."""

import collections
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfdp.data.sources.arrays import ArraySource, as_arrays

CHOSEN = np.array([4, 0, 4, 2])
DTYPES = ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64", "complex64"]


def read(source, indices=CHOSEN):
    """`rows`, called in a graph by tf.data; asserts that `row` and the spec agree."""
    dataset = tf.data.Dataset.from_tensors(np.asarray(indices, np.int64)).map(source.rows)
    tf.nest.assert_same_structure(dataset.element_spec, source.element_spec)
    for rows, spec in zip(
        tf.nest.flatten(dataset.element_spec), tf.nest.flatten(source.element_spec), strict=True
    ):
        assert rows.shape[1:] == spec.shape
        assert rows.dtype == spec.dtype
    (rows,) = dataset.as_numpy_iterator()
    singly = list(
        tf.data.Dataset.from_tensor_slices(np.asarray(indices, np.int64))
        .map(source.row)
        .as_numpy_iterator()
    )
    for place, example in enumerate(singly):
        for one, several in zip(tf.nest.flatten(example), tf.nest.flatten(rows), strict=True):
            np.testing.assert_array_equal(one, several[place])
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_dtype_are_those_of_numpy(dtype):
    array = np.arange(10).reshape(5, 2).astype(dtype)
    rows = read(ArraySource(array))
    assert rows.dtype == array.dtype
    np.testing.assert_array_equal(rows, array[CHOSEN])


def test_bfloat16_keeps_its_dtype():
    array = np.arange(5).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(read(ArraySource(array)), array[CHOSEN])


@pytest.mark.parametrize("dtype", [">f4", ">i2"])
def test_the_other_byte_order_is_converted(dtype, tmp_path):
    array = np.arange(5).astype(dtype)
    np.save(tmp_path / "array.npy", array)
    mapped = np.load(tmp_path / "array.npy", mmap_mode="r")
    for source in (ArraySource(array), ArraySource(mapped)):
        np.testing.assert_array_equal(read(source), array[CHOSEN])


def test_a_nest_keeps_its_structure():
    Pair = collections.namedtuple("Pair", "left right")
    x, y = np.arange(10.0).reshape(5, 2), np.arange(5)
    rows = read(ArraySource({"b": (x, y), "a": Pair(y, {"c": x})}))
    np.testing.assert_array_equal(rows["b"][0], x[CHOSEN])
    np.testing.assert_array_equal(rows["a"].left, y[CHOSEN])
    np.testing.assert_array_equal(rows["a"].right["c"], x[CHOSEN])


def test_a_list_of_arrays_becomes_a_tuple_as_tf_data_has_no_lists():
    x, y = np.zeros((5, 2)), np.ones((5, 3))
    source = ArraySource([x, y])
    assert isinstance(source.element_spec, tuple)
    np.testing.assert_array_equal(read(source)[1], y[CHOSEN])


@pytest.mark.parametrize(
    "numbers",
    [[1, 2, 3, 4, 5], [[1.0, 2.0]] * 5, [(1, 2)] * 5, [True] * 5, list(np.arange(5, dtype="int8"))],
    ids=str,
)
def test_a_list_of_numbers_is_an_array(numbers):
    rows = read(ArraySource((numbers, np.zeros(5))))
    np.testing.assert_array_equal(rows[0], np.asarray(numbers)[CHOSEN])


def test_tensors_are_converted():
    rows = read(ArraySource((tf.range(5), tf.Variable(tf.range(5.0)))))
    np.testing.assert_array_equal(rows[0], CHOSEN)
    np.testing.assert_array_equal(rows[1], CHOSEN)


@pytest.mark.parametrize(
    "words",
    [
        ["a", "bc", "", "ü", "e"],
        np.array(["a", "bc", "", "ü", "e"]),
        np.array(["a", "bc", "", "ü", "e"], object),
        np.array([word.encode() for word in ["a", "bc", "", "ü", "e"]]),
        np.array(["a", "bc", "", "ü", "e"], np.dtypes.StringDType()),
    ],
    ids=["list", "unicode", "objects", "bytes", "variable width"],
)
def test_strings_of_every_kind_are_utf_8(words):
    source = ArraySource(words)
    assert source.element_spec == tf.TensorSpec([], tf.string)
    assert [word.decode() for word in read(source)] == ["e", "a", "e", ""]


def test_a_memory_map_is_not_read_whole(tmp_path):
    path = tmp_path / "array.npy"
    array = np.arange(60, dtype="float32").reshape(5, 12)
    np.save(path, array)
    mapped = np.load(path, mmap_mode="r")
    source = ArraySource((mapped, np.arange(5), np.array(list("abcde"))))
    rows = read(source)
    np.testing.assert_array_equal(rows[0], array[CHOSEN])
    np.testing.assert_array_equal(rows[1], CHOSEN)
    assert rows[2].tolist() == [b"e", b"a", b"e", b"c"]
    assert source._tensors is None  # nothing was copied into a tensor
    # What the file holds now is what is read.
    np.lib.format.open_memmap(path, mode="r+")[4] = -1
    assert np.all(read(source)[0][0] == -1)


def test_a_view_that_is_not_contiguous_is_read_right():
    array = np.arange(20).reshape(2, 10).T[::2]
    np.testing.assert_array_equal(read(ArraySource(array)), array[CHOSEN])


def test_no_index_gives_no_row():
    assert read(ArraySource(np.zeros([5, 2])), [])[1:].shape == (0, 2)


def test_an_example_may_be_empty():
    assert read(ArraySource(np.zeros([5, 0]))).shape == (4, 0)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ((np.zeros(2), np.zeros(3)), ValueError, "must have one length along axis 0; received "),
        ((np.zeros(2), 1.0), ValueError, "received shapes [2], []. Cut them to one length."),
        ({}, ValueError, "received shapes no array."),
        (np.zeros([0, 3]), ValueError, "at least one example; received arrays of length 0."),
        ([], ValueError, "at least one example; received arrays of length 0."),
        ([[1], [2, 3]], ValueError, "must make an array, but"),
        ((np.zeros(2), None), TypeError, "nothing but str and bytes, but received a NoneType."),
        (np.array([1, "a"], object), TypeError, "str and bytes, but received a int."),
        (np.zeros(2, "M8[D]"), TypeError, "TensorFlow has, but received datetime64[D]."),
        (lambda: tf.ragged.constant([[1], [2, 3]]), TypeError, "but received a RaggedTensor."),
        (iter([1, 2]), TypeError, "but received a list_iterator."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_nest_of_arrays_of_one_length_is_refused(arrays, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ArraySource(arrays() if callable(arrays) else arrays)


def fingerprint(arrays):
    return ArraySource(arrays).fingerprint


def test_equal_arrays_have_one_fingerprint_wherever_they_lie(tmp_path):
    array = np.arange(40, dtype="float32").reshape(20, 2)
    np.save(tmp_path / "array.npy", array)
    np.save(tmp_path / "swapped.npy", array.astype(">f4"))
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("array.npy", "swapped.npy")]
    assert {
        fingerprint(same)
        for same in (array, array.copy(), np.asfortranarray(array), tf.constant(array), *mapped)
    } == {fingerprint(array)}


def test_other_data_has_another_fingerprint():
    array = np.arange(40, dtype="int32").reshape(20, 2)
    other = array.copy()
    other[-1, -1] += 1
    different = [
        array,
        other,
        array[:-1],
        array.astype("int64"),
        array.view("float32"),
        array.reshape(20, 2, 1),
        array.reshape(20, 1, 2),
        (array,),
        {"x": array},
        {"y": array},
        (array, array),
        np.array(["a", "b"]),
        np.array(["a", "c"]),
        np.zeros(2, "float16"),
        np.zeros(2, ml_dtypes.bfloat16),
    ]
    assert len({fingerprint(arrays) for arrays in different}) == len(different)


@pytest.mark.multiprocess
def test_the_fingerprint_is_that_of_every_process():
    program = (
        "import numpy as np; from tfdp.data.sources.arrays import ArraySource; "
        "print(ArraySource({'b': np.arange(9), 'a': np.array(list('abcdefghi'))}).fingerprint)"
    )
    here = fingerprint({"b": np.arange(9), "a": np.array(list("abcdefghi"))})
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


def test_a_scalar_leaf_stays_a_scalar():
    assert as_arrays((1, 2.5, "a", [3]))[0].shape == ()
    assert as_arrays([1, 2]).shape == (2,)


def test_it_says_what_it_is():
    assert ArraySource((np.zeros([5, 2]), np.zeros(5))).describe() == "arrays of shape [5, 2], [5]"
    assert len(ArraySource(np.zeros([5, 2]))) == 5
