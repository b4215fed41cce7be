"""Fingerprints differ where data differs, as far as they say that they look."""

import harness
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.base.data_fingerprints import fingerprint, fingerprint_arrays
from tfdp.data import sources

ARRAY = np.arange(24, dtype="float32").reshape(6, 4)


def changed(index=(3, 1)):
    array = ARRAY.copy()
    array[index] += 1
    return array


@pytest.mark.parametrize(
    "other",
    [changed(), ARRAY.astype("float64"), ARRAY.reshape(4, 6), ARRAY[:5], ARRAY[::-1]],
    ids=["a number", "the dtype", "the shape", "the length", "the order"],
)
def test_the_checksum_of_a_small_array_covers(other):
    found = fingerprint({"x": ARRAY})
    assert found == fingerprint({"x": ARRAY.copy()})
    assert found["covers"].endswith("all bytes")
    assert found["checksum"] != fingerprint({"x": other})["checksum"]


def test_an_array_s_name_and_place_are_part_of_it():
    pair = fingerprint((ARRAY, changed()))
    assert pair["checksum"] != fingerprint((changed(), ARRAY))["checksum"]
    assert pair["checksum"] == fingerprint([ARRAY, changed()])["checksum"]


def test_a_large_array_is_read_in_part_and_says_so():
    large = np.zeros([1000, 10], "uint8")
    found = fingerprint_arrays({"x": large}, whole_bytes=100)
    assert found["covers"].endswith("of x the bytes of 10 of 1000 rows, evenly spaced")
    seen, unseen = large.copy(), large.copy()
    seen[999] = unseen[998] = 1
    assert fingerprint_arrays({"x": seen}, whole_bytes=100)["checksum"] != found["checksum"]
    assert fingerprint_arrays({"x": unseen}, whole_bytes=100)["checksum"] == found["checksum"]


def test_a_large_memory_map_is_read_in_part(tmp_path):
    mapped = np.memmap(tmp_path / "x", "uint8", "w+", shape=(1000, 10))
    found = fingerprint_arrays({"x": mapped}, whole_bytes=100)
    assert found == fingerprint_arrays({"x": np.zeros([1000, 10], "uint8")}, whole_bytes=100)


@pytest.mark.parametrize(
    "array",
    [
        tf.constant(ARRAY),
        np.asfortranarray(ARRAY),
        np.concatenate([ARRAY, ARRAY], 1)[:, :4],
    ],
    ids=["a tensor", "in Fortran's order", "a view"],
)
def test_how_an_array_lies_in_memory_makes_no_difference(array):
    assert fingerprint(array) == fingerprint(ARRAY)


def test_strings_are_covered():
    words = fingerprint(np.array(["ab", "c"], object))
    assert words["checksum"] != fingerprint(np.array(["a", "bc"], object))["checksum"]
    assert words["checksum"] == fingerprint(np.array(["ab", "c"], object))["checksum"]


@pytest.mark.parametrize("array", [np.float32(3), np.zeros([0, 3]), tf.constant(2.0)])
def test_scalars_and_empty_arrays_have_one(array):
    assert fingerprint(array)["checksum"].startswith("sha256:")


@pytest.mark.parametrize(
    ("dataset", "cardinality"),
    [
        (lambda: tf.data.Dataset.range(5), 5),
        (lambda: tf.data.Dataset.range(5).repeat(), "infinite"),
        (lambda: tf.data.Dataset.range(5).filter(lambda i: i > 2), "unknown"),
    ],
)
def test_of_a_dataset_nothing_is_read(dataset, cardinality):
    found = fingerprint(dataset())
    assert found["cardinality"] == cardinality
    assert "int64" in found["element_spec"]
    assert "no element was read" in found["covers"]


def test_other_things_are_told_by_their_class():
    assert fingerprint(iter([])) == {"kind": "list_iterator", "covers": "its class"}
    assert fingerprint(range(3))["length"] == 3
    assert fingerprint(None) is None


# ---- pipelines


def augment(x, seed):
    return x + tf.random.stateless_normal(x.shape, seed)


@pytest.mark.slow
def test_a_pipeline_tells_source_content_and_options():
    found = fingerprint(tfdp.data.pipeline(ARRAY, 2, seed=5, map_fn=augment))
    assert found["source"] == "ArraySource"
    assert found["examples"] == 6
    assert found["checksum"] == fingerprint_arrays({"0": ARRAY})["checksum"]
    assert found["options"]["seed"] == 5
    assert found["options"]["map_fn"].endswith("test_data_fingerprints.augment")
    assert found["options"]["global_batch_size"] == 2
    other = fingerprint(tfdp.data.pipeline(changed(), 2, seed=5, map_fn=augment))
    assert other["checksum"] != found["checksum"]


def test_asking_for_it_does_not_change_where_a_pipeline_is():
    batches = tfdp.data.pipeline(ARRAY, 2, seed=5)
    next(iter(batches))
    before = batches.state()
    batches.identify()
    assert batches.state() == before
    assert batches.identify()["examples"] == 6


@harness.in_one_process
def test_every_source_says_what_its_fingerprint_covers():
    for name in sources.__all__:
        source = getattr(sources, name)
        if isinstance(source, type) and not name.startswith("Abstract"):
            own = source.fingerprint_covers
            assert own != sources.AbstractIndexedSource.fingerprint_covers, name


@pytest.mark.slow
def test_a_pipeline_of_a_dataset_says_that_it_was_not_read():
    found = fingerprint(tfdp.data.pipeline(tf.data.Dataset.range(5), 2, seed=1))
    assert (found["source"], found["examples"]) == ("DatasetSource", 5)
    assert "none was read" in found["covers"]
    assert "checksum" not in found


def test_a_cached_pipeline_covers_what_was_read():
    squares = sources.SequenceSource([np.float32(i) for i in range(4)])
    found = fingerprint(tfdp.data.pipeline(squares, 2, seed=1, cache=True))
    array = np.arange(4, dtype="float32")
    assert found["checksum"] == fingerprint_arrays({"0": array})["checksum"]
