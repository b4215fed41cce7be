"""Records of ArrayRecord files, in any order."""

import os

import numpy as np
import pytest
import tensorflow as tf
from data.sources.record_files import flip, payloads, read
from data.sources.record_files import write as write_tfrecords

from tfdp.data.sources.array_records import ArrayRecordSource
from tfdp.data.sources.record_files import RecordSpan
from tfdp.errors import CorruptRecordError

array_record_module = pytest.importorskip("array_record.python.array_record_module")


def write(path, records):
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


def test_any_order_with_repeats_is_what_was_written(tmp_path):
    written = [b"", *payloads(9), *payloads(6, 30000, seed=1)]
    paths = [write(tmp_path / "a", written[:7]), write(tmp_path / "b", written[7:])]
    source = ArrayRecordSource(paths)
    assert len(source) == 16
    order = np.random.default_rng(0).integers(0, 16, 50)
    assert read(source, order) == [written[index] for index in order]


def test_spans_are_parts_of_files(tmp_path):
    written = payloads(9)
    path = write(tmp_path / "a", written)
    source = ArrayRecordSource([RecordSpan(path, 7), RecordSpan(path, 1, 2)])
    assert read(source, range(4)) == [*written[7:], *written[1:3]]
    with pytest.raises(ValueError, match="count <= 9"):
        ArrayRecordSource(RecordSpan(path, 7, 3))


def test_examples_are_parsed_for_a_batch(tmp_path):
    def example(number):
        feature = {"label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    path = write(tmp_path / "a", map(example, range(5)))
    source = ArrayRecordSource(path, {"label": tf.io.FixedLenFeature([], tf.int64)})
    assert source.rows(tf.constant([3, 1], tf.int64))["label"].numpy().tolist() == [3, 1]


def test_many_threads_read_the_same(tmp_path):
    written = payloads(200)
    source = ArrayRecordSource(write(tmp_path / "a", written))
    order = np.random.default_rng(0).integers(0, 200, [60, 16])
    dataset = tf.data.Dataset.from_tensor_slices(order).map(source.rows, num_parallel_calls=8)
    for indices, rows in zip(order, dataset, strict=True):
        assert rows.numpy().tolist() == [written[index] for index in indices]


def test_a_damaged_record_fails_the_step_that_reads_it(tmp_path):
    path = write(tmp_path / "a", payloads(50, 2000))
    source = ArrayRecordSource(path)
    flip(path, 3000)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"reading '{path}'.*hash mismatch"):
        read(source, range(50))


def test_a_file_of_another_format_is_refused(tmp_path):
    path = write_tfrecords(tmp_path / "a", payloads(3))
    with pytest.raises(CorruptRecordError, match="TFRecordSource"):
        ArrayRecordSource(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused(tmp_path, part):
    path = write(tmp_path / "a", payloads(100, 5000))
    os.truncate(path, int(part * os.path.getsize(path)))
    with pytest.raises((CorruptRecordError, tf.errors.InvalidArgumentError), match=path):
        read(ArrayRecordSource(path), range(100))


def test_no_record_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one record"):
        ArrayRecordSource(write(tmp_path / "a", []))


def test_the_fingerprint_tells_contents(tmp_path):
    path = write(tmp_path / "a", payloads(5))
    one = ArrayRecordSource(path).fingerprint
    assert ArrayRecordSource(path).fingerprint == one
    write(path, payloads(5, seed=1))
    assert ArrayRecordSource(path).fingerprint != one
