"""Data sets of TensorFlow Datasets: the order of their files, their decoding, their splits."""

import importlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfdp.data.sources.as_source import as_source
from tfdp.data.sources.tfds import as_tfds_source

tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("google_crc32c")
pytest.importorskip("array_record")

FORMATS = ["tfrecord", "array_record"]
SPLITS = [
    "train",
    "test",
    "train[:80%]",
    "train[3:20]",
    "train[-5:]",
    "train[1shard]",
    "test+train[50%:]",
    "train[:2]+train[2:4]",
    "all",
]


class Tiny(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    supervised_keys = ("image", "label")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "id": tf.int64,
                    "image": tfds.features.Image(shape=(4, 3, 1)),
                    "label": tfds.features.ClassLabel(num_classes=3),
                }
            ),
            supervised_keys=self.supervised_keys,
        )

    def _split_generators(self, download_manager):
        return {"train": self._examples(range(23)), "test": self._examples(range(100, 107))}

    def _generate_examples(self, numbers):
        raise NotImplementedError

    def _examples(self, numbers):
        for number in numbers:
            image = np.full([4, 3, 1], number, np.uint8)
            yield number, {"id": number, "image": image, "label": number % 3}


class TinyUnsupervised(Tiny):
    supervised_keys = None


def prepared(kind, folder, file_format="tfrecord", shards=4):
    builder = kind(data_dir=folder, file_format=file_format)
    config = tfds.download.DownloadConfig(num_shards=shards)
    builder.download_and_prepare(download_config=config)
    return builder


@pytest.fixture(scope="module", params=FORMATS)
def builder(request, tmp_path_factory):
    return prepared(Tiny, tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def ordered(tmp_path_factory):
    """A function that gives the examples of a split, as TensorFlow Datasets reads them."""
    builder = prepared(Tiny, tmp_path_factory.mktemp("reference"))

    def examples(split, **options):
        dataset = builder.as_dataset(
            split,
            shuffle_files=False,
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
            **options,
        )
        return list(dataset.as_numpy_iterator())

    return examples


def read(source):
    dataset = tf.data.Dataset.range(len(source)).map(source.row, num_parallel_calls=2)
    assert dataset.element_spec == source.element_spec
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize("split", SPLITS)
def test_the_order_is_that_of_the_files(builder, ordered, split):
    source = as_tfds_source(builder, split, as_supervised=False)
    numbers = [int(example["id"]) for example in read(source)]
    assert numbers == [int(example["id"]) for example in ordered(split)]
    assert len(set(numbers)) == len(source)


def test_a_read_instruction_is_a_split(builder, ordered):
    split = tfds.core.ReadInstruction("train", from_=10, to=60, unit="%")
    source = as_tfds_source(builder, split, as_supervised=False)
    assert [example["id"] for example in read(source)] == [
        example["id"] for example in ordered(split)
    ]


def test_examples_are_pairs_where_the_data_set_says_how(builder, ordered):
    source = as_tfds_source(builder, "train")
    assert source.element_spec == (
        tf.TensorSpec([4, 3, 1], tf.uint8),
        tf.TensorSpec([], tf.int64),
    )
    for (image, label), (other, wanted) in zip(
        read(source), ordered("train", as_supervised=True), strict=True
    ):
        np.testing.assert_array_equal(image, other)
        assert label == wanted


def test_examples_are_dicts_where_it_does_not(tmp_path):
    builder = prepared(TinyUnsupervised, tmp_path)
    assert set(as_tfds_source(builder, "test").element_spec) == {"id", "image", "label"}
    message = "'tiny_unsupervised/1.0.0' does not. Use as_supervised=False"
    with pytest.raises(ValueError, match=re.escape(message)):
        as_tfds_source(builder, "test", as_supervised=True)


def test_decoders_are_used(builder):
    skipped = {"image": tfds.decode.SkipDecoding()}
    source = as_tfds_source(builder, "train", decoders=skipped)
    assert source.element_spec[0] == tf.TensorSpec([], tf.string)
    assert read(source)[0][0].startswith(b"\x89PNG")
    partial = tfds.decode.PartialDecoding({"id": True})
    source = as_tfds_source(builder, "train", decoders=partial, as_supervised=False)
    assert list(source.element_spec) == ["id"]
    assert sorted(int(example["id"]) for example in read(source)) == list(range(23))


def test_rows_are_the_same_examples(builder):
    source = as_tfds_source(builder, "train")
    images, labels = tf.function(source.rows)(tf.constant([20, 0, 20], tf.int64))
    singly = read(source)
    np.testing.assert_array_equal(images, [singly[index][0] for index in (20, 0, 20)])
    np.testing.assert_array_equal(labels, [singly[index][1] for index in (20, 0, 20)])


def test_the_folder_of_a_prepared_data_set_is_enough(builder):
    source = as_tfds_source(builder.data_dir, "test")
    assert source.fingerprint == as_tfds_source(builder, "test").fingerprint
    assert as_source(builder.data_dir, "test").fingerprint == source.fingerprint


def test_a_name_finds_what_is_prepared(tmp_path):
    prepared(Tiny, tmp_path)
    assert len(as_tfds_source("tiny", "train", data_dir=tmp_path)) == 23


def test_nothing_is_downloaded_unasked(tmp_path):
    message = "'tiny/1.0.0' must be prepared, but it is not in"
    for builder in (Tiny(data_dir=tmp_path), "tiny"):
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            as_tfds_source(
                builder, "train", data_dir=tmp_path if isinstance(builder, str) else None
            )
        assert "builder.download_and_prepare() once" in str(error.value)
    assert not list(tmp_path.rglob("*record*"))
    assert len(as_tfds_source(Tiny(data_dir=tmp_path), "train", download=True)) == 23


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("valid", "of the splits of 'tiny/1.0.0', 'train', 'test', stored in files, but received"),
        ("train[", "but received 'train[': "),
        ("train[50:60]", "incompatible with 23 examples"),
        ("train[3:3]", "'train[3:3]' of 'tiny/1.0.0' is empty."),
        (None, "but received None: "),
    ],
    ids=str,
)
def test_a_split_that_is_none_is_refused(builder, split, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        as_tfds_source(builder, split)


def test_a_builder_has_its_own_folder(builder, tmp_path):
    with pytest.raises(ValueError, match="`data_dir` must come with a name"):
        as_tfds_source(builder, "train", data_dir=tmp_path)
    with pytest.raises(TypeError, match=r"but received a int\. Use tfds\.builder"):
        as_tfds_source(3, "train")


def test_other_formats_are_refused(tmp_path):
    builder = prepared(Tiny, tmp_path)
    builder.info.set_file_format("riegeli", override=True, override_if_initialized=True)
    with pytest.raises(ValueError, match=r"is stored as riegeli\. Prepare it with file_format="):
        as_tfds_source(builder, "train")


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    def missing(name, *arguments):
        if name == "tensorflow_datasets":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *arguments)

    imported = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=re.escape("Use pip install 'tfdp[tfds]'.")):
        as_tfds_source("mnist", "train")


def test_the_fingerprint_tells_splits_apart(builder):
    splits = ["train", "test", "train[:50%]", "train[50%:]", "train+test", "test+train"]
    prints = {as_tfds_source(builder, split).fingerprint for split in splits}
    assert len(prints) == len(splits)
    assert all("tiny/1.0.0" in text and builder.data_dir not in text for text in prints)


@pytest.mark.exhaustive(
    "data/sources/test_arrays.py::test_the_fingerprint_is_that_of_every_process"
)
@pytest.mark.multiprocess
def test_the_fingerprint_is_that_of_every_process(builder):
    program = (
        "import sys; from tfdp.data.sources.tfds import as_tfds_source; "
        "print(as_tfds_source(sys.argv[1], 'train[:50%]').fingerprint)"
    )
    there = subprocess.run(
        [sys.executable, "-c", program, builder.data_dir],
        capture_output=True,
        text=True,
        check=True,
    )
    here = as_tfds_source(builder, "train[:50%]").fingerprint
    assert there.stdout.strip() == here


def test_a_data_source_is_a_sequence_that_knows_its_name(tmp_path, ordered):
    builder = prepared(Tiny, tmp_path, "array_record")
    sources = {
        split: as_source(builder.as_data_source(split)) for split in ("train[:9]", "train[9:18]")
    }
    source = sources["train[:9]"]
    assert source.fingerprint == "tiny/1.0.0 train[:9] of 9"
    assert source.fingerprint != sources["train[9:18]"].fingerprint
    assert source.vectorized
    (rows,) = tf.data.Dataset.from_tensors(tf.range(9, dtype=tf.int64)).map(source.rows)
    examples = ordered("train[:9]")
    for key in ("id", "image", "label"):
        np.testing.assert_array_equal(rows[key], [example[key] for example in examples])
