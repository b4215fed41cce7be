"""Each kind of data finds its source, and what is none is told what could be."""

import collections
import os
import pathlib
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.data.sources.arrays import ArraySource
from tfdp.data.sources.as_source import as_source
from tfdp.data.sources.record_files import RecordSpan


class Items:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


class Arrays(Items):
    """As h5py and zarr have them: on disk, though NumPy could read them whole."""

    def __array__(self, *arguments, **options):
        raise AssertionError("read whole")


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.zeros([2, 1])


@pytest.fixture
def images(tmp_path):
    for name in ("cat", "dog"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        (folder / "1.png").write_bytes(tf.io.encode_png(np.zeros([2, 2, 3], np.uint8)).numpy())
    return tmp_path / "images"


@pytest.fixture
def records(tmp_path):
    for shard in range(2):
        path = tmp_path / f"train.tfrecord-0000{shard}-of-00002"
        with tf.io.TFRecordWriter(str(path)) as writer:
            writer.write(b"a record")
    return tmp_path / "train.tfrecord*"


@pytest.mark.parametrize(
    "arrays",
    [
        np.zeros(3),
        lambda: tf.zeros(3),  # TensorFlow starts when tests run, with the devices of `harness`
        lambda: tf.Variable(tf.zeros(3)),
        [1.0, 2.0, 3.0],
        (np.zeros(3), [1, 2, 3]),
        [np.zeros(3), np.zeros([3, 1])],
        {"x": np.zeros(3)},
        collections.OrderedDict(x=[1, 2, 3]),
    ],
    ids=lambda arrays: type(arrays).__name__,
)
def test_arrays_and_nests_of_them(arrays):
    source = as_source(arrays() if callable(arrays) else arrays)
    assert type(source).__name__ == "ArraySource"
    assert len(source) == 3


def test_a_data_frame_is_an_array():
    pandas = pytest.importorskip("pandas")
    assert type(as_source(pandas.DataFrame({"a": [1, 2, 3]}))).__name__ == "ArraySource"


def test_a_source_is_itself():
    source = ArraySource(np.zeros(3))
    assert as_source(source) is source


def test_a_dataset():
    assert type(as_source(tf.data.Dataset.range(3))).__name__ == "DatasetSource"


@pytest.mark.parametrize("items", [Items(), Arrays(), range(3), collections.deque([1, 2, 3])])
def test_an_object_with_items(items):
    source = as_source(items)
    assert type(source).__name__ == "SequenceSource"
    assert len(source) == 3


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_folder_of_images(images, kind):
    assert type(as_source(kind(images))).__name__ == "ImageDirectorySource"


def test_record_files_by_path_pattern_list_and_span(records):
    pytest.importorskip("google_crc32c")

    paths = sorted(map(str, records.parent.glob("*.tfrecord*")))
    for given, length in (
        (str(records), 2),
        (paths, 2),
        (tuple(paths), 2),
        (pathlib.Path(paths[0]), 1),
        (RecordSpan(paths[0], 0, 1), 1),
        ([RecordSpan(path) for path in paths], 2),
    ):
        source = as_source(given)
        assert type(source).__name__ == "TFRecordSource"
        assert len(source) == length


def test_array_record_files(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")

    path = str(tmp_path / "train.array_record-00000-of-00001")
    writer = module.ArrayRecordWriter(path, "group_size:1")
    writer.write(b"a record")
    writer.close()
    for given in (path, [path], os.path.join(tmp_path, "*.array_record*")):
        assert type(as_source(given)).__name__ == "ArrayRecordSource"


def test_builders_and_names_come_with_a_split(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.testing.DummyDataset(data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"must come with `split`.* 'dummy_dataset' without"):
        as_source(builder)
    with pytest.raises(ValueError, match=r"'dummy_dataset/1\.0\.0' must be prepared"):
        as_source(builder, "train")
    builder.download_and_prepare()
    assert len(as_source(builder, "train")) == 3
    assert as_source(builder.data_dir, split="train").describe() == "dummy_dataset/1.0.0 train"


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (iter([1]), TypeError, "but received a list_iterator. Of a Python iterator, use"),
        ((item for item in [1]), TypeError, "but received a generator."),
        ({1, 2}, TypeError, "but received a set."),
        (None, TypeError, "but received a NoneType."),
        (3, TypeError, "but received a int."),
        (b"path", TypeError, "but received a bytes."),
        (lambda: 1, TypeError, "but received a function."),
        ("mnist", ValueError, "received 'mnist'. Use"),
        (["a", "b"], ValueError, "np.array(...) where strings are the examples."),
        (["a.tfrecord", "b.array_record"], ValueError, "all of one kind, but received"),
        ("missing.tfrecord", FileNotFoundError, "'missing.tfrecord' does not"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:20]),
)
def test_what_is_none_is_told_what_could_be(source, error, message):
    with pytest.raises(error, match=re.escape(message)):
        as_source(source)


def test_batches_of_keras_are_no_examples():
    with pytest.raises(TypeError, match="gives batches: received a Batches"):
        as_source(Batches())


def test_a_folder_without_folders_is_refused(tmp_path, records):
    with pytest.raises(ValueError, match=r"there is none .*\*\.tfrecord'.* labels=None"):
        as_source(tmp_path)


@pytest.mark.parametrize("source", [np.zeros(3), lambda: tf.data.Dataset.range(3), Items()])
def test_a_split_of_anything_else_is_refused(source):
    source = source() if callable(source) else source
    with pytest.raises(ValueError, match=r"received split='train' with a .* Leave `split` out\."):
        as_source(source, split="train")


@pytest.mark.multiprocess
def test_optional_libraries_are_imported_only_where_they_are_used():
    program = (
        "import sys, numpy; from tfdp.data.sources.as_source import as_source; "
        "as_source(numpy.zeros(3)); "
        "print({'tensorflow_datasets', 'array_record', 'google_crc32c'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_a_library_of_data_sets_that_could_not_be_imported_whole_is_no_hindrance(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.ModuleType("tensorflow_datasets"))
    assert len(as_source(np.zeros([3, 2]))) == 3
