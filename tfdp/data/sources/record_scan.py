"""The scan of a TFRecord file: the places of its records, and whether they are whole.

Imports no TensorFlow. A record is a header of 12 bytes (the payload's length, the length's
checksum), the payload and the payload's checksum. A checksum is CRC-32C, rotated and shifted
("masked").
"""

import array
import dataclasses
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
OVERHEAD_BYTES = HEADER.size + FOOTER.size

_FAR_BYTES = 1 << 14  # longer payloads are stepped over, shorter ones are read as well
_CHUNK_BYTES = 1 << 20
_PIECE_BYTES = 1 << 24
_COMPRESSED = ((b"\x1f\x8b", "GZIP"), (b"\x78\x01", "ZLIB"), (b"\x78\x9c", "ZLIB"))
_MASK_DELTA = 0xA282EAD8


class Damage(NamedTuple):
    """The place from which on a file cannot be read.

    Attributes:
      offset: The byte at which the first record begins that cannot be found.
      reason: The fault there, in words.
    """

    offset: int
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """The places of the records of a file.

    Attributes:
      file_bytes: The size of the file.
      offsets: The byte at which each payload begins, int64.
      lengths: The bytes of each payload, int64.
      checksums: The CRC-32C of each payload, as the file has it, unmasked; uint32.
      damage: The damage that ends the records before the file's end.
      corrupt: The numbers of the records whose payload does not fit its checksum, int64; None where
        none was read.
    """

    file_bytes: int
    offsets: np.ndarray
    lengths: np.ndarray
    checksums: np.ndarray
    damage: Damage | None = None
    corrupt: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Returns the offset, length and checksum of each payload."""
        arrays = (self.offsets, self.lengths, self.checksums)
        return zip(*(each.tolist() for each in arrays), strict=True)


def crc32c() -> Callable[[Any], int]:
    """Returns a library's function for the checksum of bytes.

    Raises:
      ImportError: The library is not installed.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError(
            "Reading TFRecord files at random needs the package google-crc32c, which is not "
            "installed. Do `pip install 'tfdp[records]'`."
        ) from error
    return google_crc32c.value


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Returns the byte at which each payload begins, in a file of payloads of these lengths."""
    ends = np.cumsum(lengths + OVERHEAD_BYTES)
    return ends - lengths - FOOTER.size


def scan(path: str) -> Records:
    """Finds the records of a file by their headers.

    Args:
      path: A TFRecord file, not compressed.

    Returns:
      The records up to the first damage; payloads are not checked.

    Raises:
      ValueError: The file is compressed.
      ImportError: google-crc32c is not installed.

    Cost: 16 bytes of each record longer than 16 KiB are read, and all of shorter ones; about a
    microsecond of one core for each record; 12 bytes of memory.
    """
    crc = crc32c()
    lengths, checksums = array.array("q"), array.array("I")
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        file_bytes = os.fstat(descriptor).st_size
        buffer, start, position = os.pread(descriptor, HEADER.size, 0), 0, 0
        _refuse_compressed(path, buffer, crc)
        reason = ""
        while position < file_bytes:
            local = position - start
            if len(buffer) - local < HEADER.size:
                reason = "the file ends within a header"
                break
            length, checksum = HEADER.unpack_from(buffer, local)
            if masked(crc(buffer[local : local + 8])) != checksum:
                reason = "a header does not fit its checksum"
                break
            end = position + length + OVERHEAD_BYTES
            if end > file_bytes:
                reason = f"a record begins that ends at byte {end}; the file has {file_bytes}"
                break
            if end + HEADER.size > start + len(buffer):
                # The footer and the next header lie side by side.
                start = end - FOOTER.size
                far = length > _FAR_BYTES
                buffer = os.pread(descriptor, OVERHEAD_BYTES if far else _CHUNK_BYTES, start)
            if len(buffer) < FOOTER.size:
                reason = "the file became shorter while it was read"
                break
            lengths.append(length)
            checksums.append(FOOTER.unpack_from(buffer, end - FOOTER.size - start)[0])
            position = end
    array_of_lengths = np.array(lengths, np.int64)
    return Records(
        file_bytes,
        offsets_of(array_of_lengths),
        array_of_lengths,
        unmasked(np.array(checksums, np.uint32)),
        Damage(position, reason) if reason else None,
    )


def verified(path: str, records: Records) -> Records:
    """Reads every payload and notes which do not fit their checksums.

    Args:
      path: The file.
      records: The records of the file.

    Returns:
      The records with `corrupt`.

    Cost: reads the file once.
    """
    crc = crc32c()
    corrupt = []
    with open(path, "rb", buffering=_CHUNK_BYTES) as file:
        for number, (offset, length, expected) in enumerate(records.places()):
            file.seek(offset)
            checksum = crc(file.read(min(length, _PIECE_BYTES)))
            for done in range(_PIECE_BYTES, length, _PIECE_BYTES):
                checksum = _extended(checksum, file.read(min(length - done, _PIECE_BYTES)))
            if checksum != expected:
                corrupt.append(number)
    return dataclasses.replace(records, corrupt=np.array(corrupt, np.int64))


def masked(checksum: int) -> int:
    """Returns a checksum as the file has it."""
    rotated = (checksum >> 15) | (checksum << 17) & 0xFFFFFFFF
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF


def unmasked(checksums: np.ndarray) -> np.ndarray:
    """Undoes the masking of checksums as the file has them, uint32."""
    rotated = checksums - np.uint32(_MASK_DELTA)
    return (rotated >> np.uint32(17)) | (rotated << np.uint32(15))


def compression_error(path: str, kind: str) -> ValueError:
    """Returns the error for a compressed file."""
    return ValueError(
        f"A TFRecord file must not be compressed to be read at random; {path!r} is {kind}. "
        "Decompress it, or stream it: "
        f"tf.data.TFRecordDataset({path!r}, compression_type={kind!r})."
    )


def _refuse_compressed(path: str, start: bytes, crc: Callable[[Any], int]) -> None:
    """Raises ValueError if the file has no header but begins with the magic of a compression.

    A whole header comes first, since a record's length may look like a magic.
    """
    if len(start) < HEADER.size or masked(crc(start[:8])) != HEADER.unpack(start)[1]:
        for magic, kind in _COMPRESSED:
            if start.startswith(magic):
                raise compression_error(path, kind)


def _extended(checksum: int, piece: bytes) -> int:
    import google_crc32c

    return google_crc32c.extend(checksum, piece)
