"""The index file beside a TFRecord file. Imports no TensorFlow.

An index has a line with the version, a line of JSON, the lengths (int64) and the checksums (uint32)
of the payloads, all little-endian, and a CRC-32 of everything before.
"""

import json
import os
import struct
import zlib

import numpy as np

from tfdp.base.atomic_files import replacing
from tfdp.data.sources.record_files import INDEX_SUFFIX
from tfdp.data.sources.record_scan import (
    FOOTER,
    HEADER,
    Damage,
    Records,
    masked,
    offsets_of,
    scan,
    verified,
)
from tfdp.errors import RecordIndexError

_VERSION = 1
_MAGIC = b"tfdp record index "
_CHECKSUM = struct.Struct("<I")


def index_path(path: str) -> str:
    """Returns the path of the index of a record file.

    >>> index_path("train-0.tfrecord")
    'train-0.tfrecord.tfdp-index'
    """
    return path + INDEX_SUFFIX


def build_index(path: str) -> Records:
    """Scans and verifies a record file, and writes its index.

    The index takes its place at once, or not at all. It may be read by those who may read the
    records.

    Args:
      path: A TFRecord file, not compressed.

    Returns:
      The records, with those that are corrupt; damage is no error here.

    Raises:
      ValueError: The file is compressed.
      OSError: The file cannot be read, or nothing can be written beside it.
      ImportError: google-crc32c is not installed.

    Cost: reads the file once; writes 12 bytes for each record.
    """
    records = verified(path, scan(path))
    with replacing(index_path(path)) as new:
        with open(new, "wb") as file:
            file.write(_encoded(records))
        os.chmod(new, os.stat(path).st_mode & 0o666)
    return records


def load_index(path: str) -> Records | None:
    """Reads the index of a record file, if there is one.

    Args:
      path: The record file.

    Returns:
      The records; None where there is no index.

    Raises:
      RecordIndexError: The index is of another state of the file (its size or its first or last
        record differ; its time does not count, since a copy changes it), is damaged, or was written
        by a newer tfdp.

    Cost: 12 bytes for each record are read, and 4 reads of the record file.
    """
    try:
        with open(index_path(path), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    records = _decoded(path, content)
    file_bytes = os.path.getsize(path)
    if file_bytes != records.file_bytes:
        raise _unusable(
            path, f"it is of a file of {records.file_bytes} bytes, and the file has {file_bytes}"
        )
    with open(path, "rb", buffering=0) as file:
        for number in {0, len(records) - 1} if len(records) else ():
            if not _is_at_its_place(file.fileno(), records, number):
                raise _unusable(path, f"record {number} of the file is another")
    return records


def _is_at_its_place(descriptor: int, records: Records, number: int) -> bool:
    offset, length = int(records.offsets[number]), int(records.lengths[number])
    header = os.pread(descriptor, HEADER.size, offset - HEADER.size)
    footer = os.pread(descriptor, FOOTER.size, offset + length)
    checksum = masked(int(records.checksums[number]))
    return header[:8] == struct.pack("<Q", length) and footer == FOOTER.pack(checksum)


def _encoded(records: Records) -> bytes:
    assert records.corrupt is not None
    header = {
        "file_bytes": records.file_bytes,
        "records": len(records),
        "corrupt": records.corrupt.tolist(),
        "damage": records.damage,
    }
    content = b"%s%d\n%s\n%s%s" % (
        _MAGIC,
        _VERSION,
        json.dumps(header).encode(),
        records.lengths.astype("<i8").tobytes(),
        records.checksums.astype("<u4").tobytes(),
    )
    return content + _CHECKSUM.pack(zlib.crc32(content))


def _decoded(path: str, content: bytes) -> Records:
    first, _, rest = content.partition(b"\n")
    version = first.removeprefix(_MAGIC)
    if not first.startswith(_MAGIC) or not version.isdigit():
        raise _unusable(path, "it is not an index of tfdp")
    if int(version) > _VERSION:
        raise _unusable(
            path,
            f"it has version {int(version)} and this tfdp reads up to {_VERSION}",
            "Update tfdp, or write it anew",
        )
    body, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
    if checksum != _CHECKSUM.pack(zlib.crc32(body)):
        raise _unusable(path, "it is damaged: its content does not fit its checksum")
    line, _, arrays = rest[: -_CHECKSUM.size].partition(b"\n")
    header = json.loads(line)
    count = header["records"]
    lengths = np.frombuffer(arrays, "<i8", count).astype(np.int64)
    return Records(
        header["file_bytes"],
        offsets_of(lengths),
        lengths,
        np.frombuffer(arrays, "<u4", count, offset=8 * count).astype(np.uint32),
        Damage(*header["damage"]) if header["damage"] else None,
        np.array(header["corrupt"], np.int64),
    )


def _unusable(path: str, reason: str, fix: str = "Write it anew") -> RecordIndexError:
    return RecordIndexError(
        f"The index {index_path(path)!r} must fit its record file, but {reason}. {fix}: "
        f"`tfdp data index --force {path}`; or delete it."
    )
