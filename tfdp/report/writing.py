"""A file that is there whole or not at all."""

from __future__ import annotations

import os
import pathlib


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes text to a file; who reads it meanwhile, or after a failure, finds the old one.

    Raises:
        OSError: it cannot be written; nothing is left behind.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "page.html"
        >>> write_whole(path, "<p>")
        >>> path.read_text(), [file.name for file in path.parent.iterdir()]
        ('<p>', ['page.html'])
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
