"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile


def replace_text(path: pathlib.Path, text: str) -> None:
    """Replaces the file at once: a reader sees the old one or the new one.

    Raises:
      OSError: It cannot be written; then nothing has changed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_text(pathlib.Path(folder, "a.json"), "{}")
    ...     os.listdir(folder)
    ['a.json']
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
