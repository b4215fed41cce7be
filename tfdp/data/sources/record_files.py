"""The files that a source reads, and the records of each. Imports no TensorFlow."""

import collections
import dataclasses
import glob
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

INDEX_SUFFIX = ".tfdp-index"
_MOST_NAMES = 3  # in a message
_MOST_OPEN = 256

Path = str | os.PathLike[str]
Opened = TypeVar("Opened")


@dataclasses.dataclass(frozen=True)
class RecordSpan:
    """Consecutive records of a file.

    Attributes:
      path: The file.
      first: The number of the first record, from 0.
      count: The number of records; None or -1 for all that follow.
    """

    path: Path
    first: int = 0
    count: int | None = None


Paths = Path | RecordSpan | Sequence[Path | RecordSpan]


def spans_of(paths: Paths) -> list[RecordSpan]:
    """Expands patterns and checks that each file is there.

    Args:
      paths: A path, a glob pattern, a span, or several; the files of a pattern are sorted, and
        indexes of tfdp beside them are left out.

    Returns:
      One span of each file, in order, with the path as a str.

    Raises:
      FileNotFoundError: A file is missing or nothing fits a pattern.
      ValueError: There is no path, a directory, an address of remote storage, a negative number, or
        a file twice (spans may share a file).

    >>> spans_of(__file__)[0].first
    0
    """
    several = [paths] if isinstance(paths, str | os.PathLike | RecordSpan) else list(paths)
    if not several:
        raise ValueError(
            "`paths` must name at least one file; received none. Check what made the list."
        )
    spans: list[RecordSpan] = []
    whole: collections.Counter[str] = collections.Counter()
    for path in several:
        found = _spans(path)
        spans += found
        if not isinstance(path, RecordSpan):
            whole.update(os.fspath(span.path) for span in found)
    twice = [path for path, times in whole.items() if times > 1]
    if twice:
        raise ValueError(
            f"`paths` must name each file once; received {str(twice[0])!r} {whole[twice[0]]} times "
            "(patterns may overlap). Leave the others out; to repeat data, repeat the dataset."
        )
    return spans


def names(paths: Sequence[Path]) -> str:
    """Lists a few base names, as a message shows them."""
    shown = ", ".join(os.path.basename(path) for path in paths[:_MOST_NAMES])
    more = len(paths) - _MOST_NAMES
    return shown + (f" and {more} more" if more > 0 else "")


class OpenFiles(Generic[Opened]):
    """Opens files when they are first read, and keeps the most recently used.

    A file that is dropped is closed once the last thread that reads it lets go.

    Args:
      opener: Opens a path.
    """

    def __init__(self, opener: Callable[[str], Opened]) -> None:
        self._opener = opener
        self._opened: collections.OrderedDict[str, Opened] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, path: str) -> Opened:
        with self._lock:
            opened = self._opened.get(path)
            if opened is None:
                opened = self._opened[path] = self._opener(path)
                if len(self._opened) > _MOST_OPEN:
                    self._opened.popitem(last=False)
            else:
                self._opened.move_to_end(path)
            return opened


def _spans(path: Path | RecordSpan) -> list[RecordSpan]:
    if isinstance(path, RecordSpan):
        first, count = path.first, None if path.count in (None, -1) else path.count
        if first < 0 or (count is not None and count < 0):
            raise ValueError(
                "A span must have first >= 0 and count >= 0, or count=None for all that follow; "
                f"received first={path.first}, count={path.count} of {os.fspath(path.path)!r}."
            )
        return [RecordSpan(_existing(os.fspath(path.path)), first, count)]
    text = os.fspath(path)
    # A file may have brackets in its name.
    if glob.has_magic(text) and not os.path.exists(text):
        found = sorted(
            name
            for name in glob.glob(text, recursive=True)
            if not name.endswith(INDEX_SUFFIX) and not os.path.isdir(name)
        )
        if not found:
            raise FileNotFoundError(
                f"The pattern {text!r} in `paths` must fit at least one file; it fits none from "
                f"{os.getcwd()}. Check the folder and the ending."
            )
        return [RecordSpan(name) for name in found]
    return [RecordSpan(_existing(text))]


def _existing(path: str) -> str:
    if "://" in path:
        raise ValueError(
            f"`paths` must be files that this host can open; received {path!r}. Mount or copy "
            "them, or stream them with tf.data.TFRecordDataset."
        )
    if os.path.isdir(path):
        pattern = os.path.join(path, "*")
        raise ValueError(
            f"`paths` must name files; received the folder {path!r}. Use paths={pattern!r}."
        )
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"`paths` must name files that exist; {path!r} does not, from {os.getcwd()}. Check the "
            "spelling."
        )
    return path
