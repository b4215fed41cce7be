"""The source of ArrayRecord files."""

import os
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.data.sources.abstract import AbstractIndexedSource, call_with_indices
from tfdp.data.sources.examples import parse, spec_of
from tfdp.data.sources.record_files import OpenFiles, Paths, names, spans_of
from tfdp.errors import CorruptRecordError

# Readahead would read neighbouring records that nobody asks for.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class ArrayRecordSource(AbstractIndexedSource):
    """The records of ArrayRecord files, each read where it lies.

    The format has an index and checksums of its own. Write files with `group_size:1`: records of a
    larger group are read together.

    Args:
      paths: A path, a glob pattern, a `RecordSpan`, or several; the files of a pattern are sorted.
      features: A dict of `tf.io.FixedLenFeature`: the examples are dicts of tensors. None: they are
        the serialized bytes, as scalar strings.

    Raises:
      CorruptRecordError: A file is damaged or of another format. (A record that is damaged is an
        error of the step that reads it.)
      FileNotFoundError: A file is missing or nothing fits a pattern.
      ValueError: A feature has no fixed shape, a span exceeds its file, or there is no record.
      ImportError: array-record is not installed: `pip install 'tfdp[records]'`.

    Cost: each file is opened once here and its index read. At most 256 files stay open, each with
    its index in memory.

    >>> import os, tempfile
    >>> from array_record.python import array_record_module
    >>> path = os.path.join(tempfile.mkdtemp(), "train.array_record")
    >>> writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    >>> for word in (b"one", b"two", b"three"):
    ...     _ = writer.write(word)
    >>> writer.close()
    >>> source = ArrayRecordSource(path)
    >>> source.rows(tf.constant([2, 0], tf.int64)).numpy().tolist()
    [b'three', b'one']
    """

    fingerprint_covers = (
        "names and sizes of the files, which of their records, and the first and the last of these"
    )

    def __init__(self, paths: Paths, features: Mapping[str, Any] | None = None) -> None:
        spans = spans_of(paths)
        self.element_spec = spec_of(features)
        self._features = features
        self._opened = OpenFiles(_Reader)
        self._paths = [os.fspath(span.path) for span in spans]
        self._firsts = np.array([span.first for span in spans], np.int64)
        counts = []
        for path, span in zip(self._paths, spans, strict=True):
            length = self._opened[path].length
            count = length - span.first if span.count is None else span.count
            if count < 0 or span.first + count > length:
                raise ValueError(
                    f"A span must lie within its file; received records {span.first} to "
                    f"{span.first + count} of {path!r}, which has {length}. Use first + count <= "
                    f"{length}."
                )
            counts.append(count)
        self._ends = np.cumsum(counts)
        if not len(self):
            raise ValueError(
                f"`paths` must have at least one record; {self.describe()} have none. Check what "
                "wrote them."
            )
        self.fingerprint = self._make_fingerprint(counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def describe(self) -> str:
        """Lists the names of the first files."""
        plural = "s" * (len(self._paths) > 1)
        return f"{len(self._paths)} ArrayRecord file{plural} ({names(self._paths)})"

    def rows(self, indices: tf.Tensor) -> Any:
        """Reads and parses the examples."""
        (serialized,) = call_with_indices(self._read, indices, [tf.TensorSpec([], tf.string)])
        return parse(serialized, self._features)

    def _read(self, indices: np.ndarray) -> np.ndarray:
        files = np.searchsorted(self._ends, indices, side="right")
        starts = np.concatenate([[0], self._ends])[files]
        numbers = indices - starts + self._firsts[files]
        payloads = np.empty(len(indices), object)
        for file in np.unique(files):
            places = np.flatnonzero(files == file)
            path = self._paths[file]
            payloads[places] = self._opened[path].read(numbers[places].tolist())
        return payloads

    def _make_fingerprint(self, counts: list[int]) -> str:
        checksum = zlib.crc32(str(self.element_spec).encode())
        for path, first, count in zip(self._paths, self._firsts, counts, strict=True):
            identity = f"{os.path.basename(path)} {os.path.getsize(path)} {first} {count}\n"
            checksum = zlib.crc32(identity.encode(), checksum)
        for payload in self._read(np.array([0, len(self) - 1])):
            checksum = zlib.crc32(payload, checksum)
        return f"{len(self)} of {len(self._paths)} ArrayRecord files: {checksum:08x}"


class _Reader:
    """The library's reader of a file, and the file's name for its errors."""

    def __init__(self, path: str) -> None:
        try:
            from array_record.python import array_record_module  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError(
                "Reading ArrayRecord files needs the package array-record, which is not installed. "
                "Do `pip install 'tfdp[records]'`."
            ) from error
        self._path = path
        try:
            self._reader = array_record_module.ArrayRecordReader(path, _OPTIONS)
        except (RuntimeError, ValueError) as error:
            raise self._error(error) from error
        # The library opens a file of any format, as one without records.
        if not self._reader.ok():
            raise self._error("it has no index of the format")
        self.length = self._reader.num_records()

    def read(self, numbers: list[int]) -> list[bytes]:
        """Returns the records of these numbers."""
        try:
            return self._reader.read(numbers)
        except (RuntimeError, ValueError) as error:
            raise self._error(error) from error

    def _error(self, reason: object) -> CorruptRecordError:
        return CorruptRecordError(
            f"An ArrayRecord file must be whole; reading {self._path!r}: {reason}. Restore the "
            "file, or write it anew; a TFRecord file is for TFRecordSource."
        )
