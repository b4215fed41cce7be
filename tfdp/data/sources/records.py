"""The source of TFRecord files, with random access."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfdp.data.sources.abstract import AbstractIndexedSource, call_with_indices
from tfdp.data.sources.examples import parse, spec_of
from tfdp.data.sources.record_files import Path, Paths, RecordSpan, names, spans_of
from tfdp.data.sources.record_index import load_index
from tfdp.data.sources.record_reader import RecordReader
from tfdp.data.sources.record_scan import HEADER, Records, compression_error, scan, verified
from tfdp.errors import CorruptRecordError

_LOGGER = logging.getLogger("tfdp")


class TFRecordSource(AbstractIndexedSource):
    """The records of TFRecord files, each read where it lies.

    The places of the records are known from an index beside each file (`tfdp data index FILES...`),
    or else from the headers, which are scanned here. Every header that is scanned and every payload
    that is read is checked by its checksum.

    Args:
      paths: A path, a glob pattern, a `RecordSpan`, or several; the files of a pattern are sorted.
      features: A dict of `tf.io.FixedLenFeature`: the examples are dicts of tensors. None: they are
        the serialized bytes, as scalar strings.
      on_error: "raise", or "skip" to leave out what is corrupt: single records, or the rest of a
        file after a header that is damaged or missing. What is left out is counted and logged as a
        warning, and lessens the number of examples.
      compression: None or "": a compressed file cannot be read at random.

    Attributes:
      bytes_read: The bytes that `rows` has read so far.
      skipped: The number of records that were left out because of their payload.
      skipped_bytes: The bytes of files that were left out because no record could be found there.

    Raises:
      CorruptRecordError: A header is damaged or a file is truncated. (A payload that is damaged is
        an error of the step that reads it.)
      FileNotFoundError: A file is missing or nothing fits a pattern.
      ValueError: Another argument has none of the values named here, a file is compressed, an index
        is of another state of its file (`RecordIndexError`), a span exceeds its file, or there is
        no record.
      ImportError: google-crc32c is not installed: `pip install 'tfdp[records]'`.

    Cost: 24 bytes of memory for each record. With an index, 12 bytes for each record are read here.
    Without one, all headers are read, about 2 microseconds each, by stepping over payloads longer
    than 16 KiB and reading shorter ones as well. "skip" reads all files once, unless each has an
    index. At most 256 files stay open. Where payloads have less than 16 KiB on average, files are
    mapped: a file that is cut short while it is read may then end the process.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "train.tfrecord")
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     for word in (b"one", b"two", b"three"):
    ...         writer.write(word)
    >>> source = TFRecordSource(path)
    >>> source.rows(tf.constant([2, 0], tf.int64)).numpy().tolist()
    [b'three', b'one']
    >>> source.bytes_read
    8
    >>> len(TFRecordSource.from_spans([(path, 1, 2)]))
    2
    """

    fingerprint_covers = (
        "names and sizes of the files, and which of their records, with length and stored checksum "
        "of each"
    )

    def __init__(
        self,
        paths: Paths,
        features: Mapping[str, Any] | None = None,
        *,
        on_error: Literal["raise", "skip"] = "raise",
        compression: str | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(
                f"`on_error` must be 'raise' or 'skip'; received {on_error!r}. Use 'raise'."
            )
        spans = spans_of(paths)
        if compression:
            raise compression_error(os.fspath(spans[0].path), compression)
        self.element_spec = spec_of(features)
        self.skipped = 0
        self.skipped_bytes = 0
        self._features = features
        self._paths = list(dict.fromkeys(os.fspath(span.path) for span in spans))
        of_file = [_records(path, on_error) for path in self._paths]
        chosen = [(self._paths.index(os.fspath(span.path)), span) for span in spans]
        parts = [(file, _numbers(of_file[file], span, on_error)) for file, span in chosen]
        files = np.concatenate([np.full(len(part), file, np.int32) for file, part in parts])
        self._length = len(files)
        if on_error == "skip":
            self._count_skipped(of_file, chosen)
        if not self._length:
            raise ValueError(
                f"`paths` must have at least one record; {self.describe()} have none. Check what "
                "wrote them."
            )
        offsets, lengths, checksums = (
            np.concatenate([getattr(of_file[file], name)[part] for file, part in parts])
            for name in ("offsets", "lengths", "checksums")
        )
        self._reader = RecordReader(self._paths, files, offsets, lengths, checksums)
        checksum = zlib.crc32(str(self.element_spec).encode())
        for path, records in zip(self._paths, of_file, strict=True):
            identity = f"{os.path.basename(path)} {records.file_bytes}\n"
            checksum = zlib.crc32(identity.encode(), checksum)
        for array in (files, lengths, checksums):
            checksum = zlib.crc32(array.tobytes(), checksum)
        self.fingerprint = f"{self._length} of {len(self._paths)} TFRecord files: {checksum:08x}"

    @classmethod
    def from_spans(
        cls,
        spans: Sequence[tuple[Path, int, int | None]],
        features: Mapping[str, Any] | None = None,
        *,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> TFRecordSource:
        """Makes a source of parts of files, in the order given.

        Args:
          spans: Tuples (path, number of the first record, number of records; None or -1 for all
            that follow); a file may be given several times.
          features: The features, as for the class.
          on_error: "raise" or "skip", as for the class.

        Returns:
          The source.

        Raises:
          ValueError: The same as for the class; also where a span exceeds its file.

        Cost: the same as for the class, of the whole files.
        """
        return cls([RecordSpan(*span) for span in spans], features, on_error=on_error)

    @property
    def bytes_read(self) -> int:
        """The bytes that `rows` has read so far."""
        return self._reader.bytes_read

    def __len__(self) -> int:
        return self._length

    def describe(self) -> str:
        """Lists the names of the first files."""
        plural = "s" * (len(self._paths) > 1)
        return f"{len(self._paths)} TFRecord file{plural} ({names(self._paths)})"

    def rows(self, indices: tf.Tensor) -> Any:
        """Reads, checks and parses the examples."""
        (serialized,) = call_with_indices(
            self._reader.read, indices, [tf.TensorSpec([], tf.string)]
        )
        return parse(serialized, self._features)

    def _count_skipped(self, of_file: list[Records], chosen: list[tuple[int, RecordSpan]]) -> None:
        lost: dict[int, list[int]] = {}
        for file, span in chosen:
            records = of_file[file]
            numbers = _corrupt(records, span)
            self.skipped += len(numbers)
            lost.setdefault(file, []).extend((records.offsets[numbers] - HEADER.size).tolist())
        what = []
        for file, offsets in lost.items():
            damage = of_file[file].damage
            parts = [f"{len(offsets)} records from byte {min(offsets)}"] if offsets else []
            if damage:
                rest = of_file[file].file_bytes - damage.offset
                self.skipped_bytes += rest
                parts.append(f"the last {rest} bytes from byte {damage.offset} ({damage.reason})")
            if parts:
                what.append(f"of {self._paths[file]!r} " + " and ".join(parts))
        if what:
            _LOGGER.warning(
                "Left out as corrupt: %s. In all %d records, and %d bytes where none was found.",
                "; ".join(what[:4]) + (f"; of {len(what) - 4} more files" * (len(what) > 4)),
                self.skipped,
                self.skipped_bytes,
            )


def _records(path: str, on_error: str) -> Records:
    records = load_index(path) or scan(path)
    if on_error == "skip":
        return records if records.corrupt is not None else verified(path, records)
    if records.damage:
        offset, reason = records.damage
        raise CorruptRecordError(
            f"A TFRecord file must be whole; in {path!r}, at byte {offset}, {reason}. Restore the "
            f"file, or use on_error='skip' to leave out what follows its first {len(records)} "
            "records."
        )
    return records


def _numbers(records: Records, span: RecordSpan, on_error: str) -> np.ndarray:
    """Returns the numbers of the records of a span in its file."""
    stop = len(records) if span.count is None else span.first + span.count
    if stop > len(records) or span.first > len(records):
        if on_error != "skip" or not records.damage:
            raise ValueError(
                f"A span must lie within its file; received records {span.first} to {stop} of "
                f"{span.path!r}, which has {len(records)}. Use first + count <= {len(records)}."
            )
        stop = len(records)
    numbers = np.arange(span.first, stop)
    if on_error == "skip":
        numbers = np.setdiff1d(numbers, _corrupt(records, span), assume_unique=True)
    return numbers


def _corrupt(records: Records, span: RecordSpan) -> np.ndarray:
    """Returns the numbers of the span's records that do not fit their checksums."""
    assert records.corrupt is not None
    numbers = records.corrupt[records.corrupt >= span.first]
    return numbers if span.count is None else numbers[numbers < span.first + span.count]
