"""The reader of TFRecord files' payloads, by number."""

import itertools
import mmap
import os
import threading
from collections.abc import Sequence

import numpy as np

from tfdp.data.sources.record_files import OpenFiles
from tfdp.data.sources.record_scan import HEADER, crc32c
from tfdp.errors import CorruptRecordError

# Files whose payloads are shorter on average are mapped, and copying costs a third of a system
# call. Longer payloads are read by calls, which let other threads run while they wait for the disk.
_MAPPED_BYTES = 1 << 14


class RecordReader:
    """Reads payloads and checks them; many threads may call it.

    Args:
      paths: The files.
      files: For each record the number of its file, int32.
      offsets: The byte at which each payload begins, int64.
      lengths: The bytes of each payload, int64.
      checksums: The CRC-32C of each payload, uint32.

    Attributes:
      bytes_read: The bytes that have been read so far.

    Raises:
      ImportError: google-crc32c is not installed.
    """

    def __init__(
        self,
        paths: Sequence[str],
        files: np.ndarray,
        offsets: np.ndarray,
        lengths: np.ndarray,
        checksums: np.ndarray,
    ) -> None:
        self.bytes_read = 0
        self._paths = paths
        self._files = files
        self._offsets = offsets
        self._lengths = lengths
        self._checksums = checksums
        self._crc32c = crc32c()
        mapped = lengths.mean() <= _MAPPED_BYTES
        self._opened: OpenFiles[_MappedFile | _File] = OpenFiles(_MappedFile if mapped else _File)
        self._lock = threading.Lock()

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Returns payloads, as an array of bytes objects.

        They are read in the order in which they lie, and repeated ones once.

        Args:
          indices: The numbers of the records, int64, shape (k,).

        Returns:
          An array of objects, shape (k,).

        Raises:
          CorruptRecordError: A payload does not fit its checksum.
          OSError: A file cannot be read.
        """
        wanted, places = np.unique(indices, return_inverse=True)
        payloads = self._payloads(wanted)
        computed = np.fromiter(map(self._crc32c, payloads), np.uint32, len(payloads))
        found = np.fromiter(map(len, payloads), np.int64, len(payloads))
        wrong = (computed != self._checksums[wanted]) | (found != self._lengths[wanted])
        if wrong.any():
            at_first = np.flatnonzero(wrong)[0]
            raise self._error(int(wanted[at_first]), int(found[at_first]))
        array = np.empty(len(payloads), object)
        array[:] = payloads
        return array[places]

    def _payloads(self, wanted: np.ndarray) -> list[bytes]:
        if not len(wanted):
            return []
        files, starts = self._files[wanted], self._offsets[wanted]
        ends = starts + self._lengths[wanted]
        edges = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(wanted)]
        payloads: list[bytes] = []
        for first, after in itertools.pairwise(edges):
            file = self._opened[self._paths[files[first]]]
            payloads += file.read(starts[first:after].tolist(), ends[first:after].tolist())
        with self._lock:
            self.bytes_read += sum(map(len, payloads))
        return payloads

    def _error(self, number: int, found: int) -> CorruptRecordError:
        path = self._paths[self._files[number]]
        offset, length = int(self._offsets[number]) - HEADER.size, int(self._lengths[number])
        what = "does not fit its checksum"
        if found != length:
            what = f"has {found} bytes left of {length}"
        return CorruptRecordError(
            f"A record must be as it was written; the payload of the one at byte {offset} of "
            f"{path!r} {what}: the file is damaged, or was changed since it was opened or indexed. "
            "Restore the file, or leave such records out with on_error='skip' (delete its index "
            "if it has one)."
        )


class _MappedFile:
    """A mapping of a file, unmapped when nobody holds it any more."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, starts: list[int], ends: list[int]) -> list[bytes]:
        """Returns the bytes from each start to its end, or to the end of the file."""
        mapping = self._mapping
        # The kernel kills a process that reads a mapping beyond the file's end.
        size = mapping.size()
        if max(ends) > size:
            ends = [min(end, size) for end in ends]
        return [mapping[start:end] for start, end in zip(starts, ends, strict=True)]


class _File:
    """An open file that closes itself when nobody holds it any more."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, starts: list[int], ends: list[int]) -> list[bytes]:
        """Returns the bytes from each start to its end, or to the end of the file."""
        return [self._read(end - start, start) for start, end in zip(starts, ends, strict=True)]

    def _read(self, count: int, offset: int) -> bytes:
        content = os.pread(self._descriptor, count, offset)
        # Linux reads at most 2 GiB at once, and some file systems less.
        while len(content) < count:
            more = os.pread(self._descriptor, count - len(content), offset + len(content))
            if not more:
                break
            content += more
        return content
