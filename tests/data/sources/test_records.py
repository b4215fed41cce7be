"""Records of TFRecord files, read in any order, are those that TensorFlow reads in its own."""

import builtins
import gc
import logging
import os
import pathlib
import re
import sys
import tempfile
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from data.sources.record_files import OVERHEAD, flip, payloads, read, write
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.data.sources.record_files import RecordSpan
from tfdp.data.sources.record_index import build_index
from tfdp.data.sources.records import TFRecordSource
from tfdp.errors import CorruptRecordError


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.tfrecord", payloads(10))


def open_files(folder):
    """How many files of a folder this process has open."""
    descriptors = pathlib.Path("/proc/self/fd").iterdir()
    return sum(str(folder) in os.path.realpath(each) for each in descriptors)


def at_byte(path, byte):
    return rf"at byte {byte}\b.*{re.escape(str(path))}|{re.escape(str(path))}.*at byte {byte}\b"


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from([0, 1, 7, 400, 16383, 16384, 16385, 70000]), max_size=9)),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_any_order_with_repeats_equals_tensorflows_own_reading(lengths, seed, indexed):
    bits = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write(f"{folder}/{number}", [bits.bytes(length) for length in of_file])
            for number, of_file in enumerate(lengths)
        ]
        if not sum(map(len, lengths)):
            with pytest.raises(ValueError, match="at least one"):
                TFRecordSource(paths)
            return
        if indexed:
            for path in paths:
                build_index(path)
        expected = [each.numpy() for each in tf.data.TFRecordDataset(paths)]
        source = TFRecordSource(paths)
        assert len(source) == len(expected)
        order = bits.integers(0, len(expected), 2 * len(expected))
        assert read(source, order) == [expected[index] for index in order]
        assert source.row(tf.constant(order[0])).numpy() == expected[order[0]]


def test_examples_are_parsed_as_tensorflow_parses_them(tmp_path):
    def example(number):
        feature = {
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number, 0.5])),
            "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"n%d" % number])),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    features = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([2], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
        "absent": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    }
    source = TFRecordSource(write(tmp_path / "a", map(example, range(9))), features)
    order = tf.data.Dataset.from_tensors(np.array([4, 0, 4, 8]))
    rows = next(iter(order.map(source.rows)))
    for place, number in enumerate([4, 0, 4, 8]):
        expected = tf.io.parse_single_example(example(number), features)
        for name, value in expected.items():
            assert np.array_equal(rows[name][place], value)
            assert source.element_spec[name].shape == value.shape
            assert source.element_spec[name].dtype == value.dtype
    dataset = order.map(source.rows)
    assert dataset.element_spec["x"].shape == [4, 2]


@pytest.mark.parametrize(
    "feature",
    [
        tf.io.VarLenFeature(tf.int64),
        tf.io.FixedLenFeature([None], tf.int64),
        tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
        tf.io.RaggedFeature(tf.int64),
    ],
    ids=lambda feature: type(feature).__name__,
)
def test_a_feature_of_no_fixed_shape_is_refused(path, feature):
    with pytest.raises(ValueError, match=r"'tags' must be a tf.io.FixedLenFeature.*`map_fn`"):
        TFRecordSource(path, {"tags": feature})


def test_a_pattern_takes_sorted_files_without_their_indexes(tmp_path):
    for name in ("c", "a", "b"):
        build_index(write(tmp_path / f"train-{name}", [name.encode()]))
    source = TFRecordSource(tmp_path / "train-*")
    assert read(source, range(3)) == [b"a", b"b", b"c"]
    assert source.describe() == "3 TFRecord files (train-a, train-b, train-c)"


def test_a_file_with_brackets_is_no_pattern(tmp_path):
    assert len(TFRecordSource(write(tmp_path / "a[1].tfrecord", [b"x"]))) == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: TFRecordSource([]), ValueError, "at least one file"),
        (lambda path: TFRecordSource(path + "*none"), FileNotFoundError, "fits none"),
        (lambda path: TFRecordSource(path + ".x"), FileNotFoundError, "does not"),
        (lambda path: TFRecordSource(os.path.dirname(path)), ValueError, r"Use paths='.*/\*'"),
        (lambda path: TFRecordSource("gs://b/x"), ValueError, "tf.data.TFRecordDataset"),
        (lambda path: TFRecordSource([path, path]), ValueError, "2 times"),
        (lambda path: TFRecordSource(path, on_error="drop"), ValueError, "Use 'raise'"),
        (lambda path: TFRecordSource(path, {}), ValueError, "received {}"),
        (lambda path: TFRecordSource(path, compression="ZLIB"), ValueError, "='ZLIB'"),
        (lambda path: TFRecordSource(RecordSpan(path, -1)), ValueError, "first=-1"),
        (lambda path: TFRecordSource(RecordSpan(path, 8, 3)), ValueError, "count <= 10"),
        (lambda path: TFRecordSource(RecordSpan(path, 11)), ValueError, "count <= 10"),
        (lambda path: TFRecordSource(RecordSpan(path, 3, 0)), ValueError, "at least one record"),
    ],
)
def test_what_cannot_be_read_is_refused(path, make, error, message):
    with pytest.raises(error, match=message):
        make(path)


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_compressed_file_is_refused(tmp_path, kind, on_error):
    path = str(tmp_path / "a")
    with tf.io.TFRecordWriter(path, kind) as writer:
        writer.write(b"payload")
    with pytest.raises(ValueError, match=f"compression_type='{kind}'"):
        TFRecordSource(path, on_error=on_error)


def test_a_length_that_looks_like_gzip_is_a_length(tmp_path):
    assert len(TFRecordSource(write(tmp_path / "a", [bytes(0x8B1F)]))) == 1


def test_spans_are_parts_of_files_in_the_order_given(tmp_path):
    first, second = payloads(6), payloads(5, seed=1)
    a, b = write(tmp_path / "a", first), write(tmp_path / "b", second)
    source = TFRecordSource.from_spans([(b, 3, -1), (a, 1, 2), (b, 0, 1), (a, 5, None)])
    assert read(source, range(6)) == [*second[3:], *first[1:3], second[0], first[5]]


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [False, True])
def test_a_flipped_bit_anywhere_is_found_or_changes_no_payload(tmp_path, indexed):
    written = [b"", b"abc", b"defghij"]
    path = write(tmp_path / "a", written)
    size = os.path.getsize(path)
    for byte in range(size):
        for bit in (0, 7):
            write(path, written)
            if indexed:
                build_index(path)
            flip(path, byte, bit)
            try:
                found = read(TFRecordSource(path), range(3))
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                assert str(path) in str(error)
                assert re.search(r"byte \d+|record \d", str(error))
            else:
                # An index vouches for what it was made of: the file's own checksums are not needed.
                assert indexed and found == written


def test_every_truncation_names_the_file_and_where_its_record_begins(tmp_path):
    written = [b"ab", b"", b"cde"]
    path = write(tmp_path / "a", written)
    whole = pathlib.Path(path).read_bytes()
    begins = np.cumsum([0, *(len(each) + OVERHEAD for each in written)]).tolist()
    for size in range(1, len(whole)):
        pathlib.Path(path).write_bytes(whole[:size])
        if size in begins:
            assert len(TFRecordSource(path)) == begins.index(size)
            continue
        offset = max(begin for begin in begins if begin <= size)
        with pytest.raises(CorruptRecordError, match=at_byte(path, offset)):
            TFRecordSource(path)


def test_a_corrupt_payload_fails_the_step_that_reads_it(path):
    source = TFRecordSource(path)
    flip(path, 3 * 56 + 20)
    assert len(read(source, [2, 4])) == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match=at_byte(path, 3 * 56)):
        read(source, [4, 3])


@pytest.mark.parametrize("length", [40, 40000])
def test_a_file_that_is_cut_while_it_is_read_fails_the_step(tmp_path, length):
    path = write(tmp_path / "a", payloads(5, length))
    source = TFRecordSource(path)
    assert len(read(source, [4])) == 1
    os.truncate(path, 100)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"bytes left of {length}"):
        read(source, [4])


@pytest.mark.parametrize("indexed", [False, True])
def test_skip_leaves_out_what_is_corrupt_and_counts_it(tmp_path, caplog, indexed):
    written = payloads(10)
    a, b, c = (write(tmp_path / name, written) for name in "abc")
    flip(a, 2 * 56 + 30)
    flip(a, 5 * 56 + 54)
    flip(b, 7 * 56)
    flip(b, 1 * 56 + 20)
    if indexed:
        for path in (a, b, c):
            build_index(path)
    with caplog.at_level(logging.WARNING, "tfdp"):
        source = TFRecordSource([a, b, c], on_error="skip")
    kept = [
        *(each for number, each in enumerate(written) if number not in (2, 5)),
        *(each for number, each in enumerate(written[:7]) if number != 1),
        *written,
    ]
    assert read(source, range(len(source))) == kept
    assert (source.skipped, source.skipped_bytes) == (3, 3 * 56)
    [record] = [each for each in caplog.records if each.name == "tfdp"]
    message = record.getMessage()
    assert f"{a!r} 2 records from byte 112" in message
    assert f"{b!r} 1 records from byte 56 and the last 168 bytes from byte 392" in message
    assert c not in message and "3 records, and 168 bytes" in message


def test_skip_of_whole_files_leaves_nothing_out(path, caplog):
    source = TFRecordSource(path, on_error="skip")
    assert (len(source), source.skipped, source.skipped_bytes) == (10, 0, 0)
    assert not [each for each in caplog.records if each.name == "tfdp"]


def test_skip_counts_only_what_its_spans_lack(path):
    flip(path, 2 * 56 + 30)
    flip(path, 6 * 56 + 30)
    source = TFRecordSource.from_spans([(path, 4, 4)], on_error="skip")
    assert (len(source), source.skipped) == (3, 1)


def test_nothing_left_is_an_error(tmp_path):
    path = write(tmp_path / "a", [b"abc"])
    flip(path, 0)
    with pytest.raises(ValueError, match="at least one record"):
        TFRecordSource(path, on_error="skip")


@pytest.mark.parametrize("length", [400, 40000])
def test_each_of_two_workers_reads_half_of_a_file(tmp_path, length):
    path = write(tmp_path / "a", payloads(40, length))
    order = np.random.default_rng(0).permutation(40)
    for half in (order[:20], order[20:]):
        source = TFRecordSource(path)
        read(source, half)
        assert 0.4 * os.path.getsize(path) <= source.bytes_read <= 0.6 * os.path.getsize(path)


@pytest.mark.parametrize("length", [30, 20000])
def test_many_threads_and_more_files_than_stay_open_read_the_same(tmp_path, length):
    written = [payloads(2, length, seed) for seed in range(300)]
    paths = [write(tmp_path / str(number), each) for number, each in enumerate(written)]
    flat = [payload for each in written for payload in each]
    source = TFRecordSource(paths)
    order = np.random.default_rng(0).integers(0, len(flat), [60, 64])
    dataset = tf.data.Dataset.from_tensor_slices(order).map(source.rows, num_parallel_calls=8)
    for indices, rows in zip(order, dataset, strict=True):
        assert rows.numpy().tolist() == [flat[index] for index in indices]
    assert open_files(tmp_path) == 256


@pytest.mark.slow
def test_memory_and_open_files_do_not_grow(path):
    source = TFRecordSource(path)
    indices = np.arange(10)

    def measure():
        for _ in range(200):
            source._reader.read(indices)
        gc.collect()
        ours = tracemalloc.Filter(True, "*/tfdp/data/*")  # other threads allocate, too
        traces = tracemalloc.take_snapshot().filter_traces([ours]).traces
        return sum(trace.size for trace in traces), open_files(path)

    tracemalloc.start()
    try:
        measure()
        before = measure()
        after = measure()
    finally:
        tracemalloc.stop()
    assert after[0] - before[0] < 4096
    assert after[1] == before[1] == 1


def test_a_dataset_keeps_what_it_reads(path):
    expected = [each.numpy() for each in tf.data.TFRecordDataset(path)]
    dataset = tf.data.Dataset.from_tensors(np.arange(10)).map(TFRecordSource(path).rows)
    for made in (dataset, dataset.repeat(2).prefetch(1)):
        iterator = iter(made)
        del made
        gc.collect()
        assert next(iterator).numpy().tolist() == expected


def test_a_source_that_is_gone_leaves_no_file_open(path):
    source = TFRecordSource(path)
    read(source, [1, 2])
    assert open_files(path) == 1
    del source
    gc.collect()
    assert open_files(path) == 0


def test_the_fingerprint_tells_contents_and_not_folders(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    paths = [write(folder / "a", payloads(5)) for folder in folders]
    build_index(paths[1])
    assert TFRecordSource(paths[0]).fingerprint == TFRecordSource(paths[1]).fingerprint
    part = TFRecordSource(RecordSpan(paths[0], 0, 4)).fingerprint
    write(paths[0], payloads(5, seed=1))
    assert len({part, *(TFRecordSource(path).fingerprint for path in paths)}) == 3


def test_without_the_library_the_extra_is_named(path, monkeypatch):
    imported = builtins.__import__

    def missing(name, *rest, **options):
        if name == "google_crc32c":
            raise ImportError(name)
        return imported(name, *rest, **options)

    monkeypatch.delitem(sys.modules, "google_crc32c", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'tfdp\[records\]'"):
        TFRecordSource(path)
