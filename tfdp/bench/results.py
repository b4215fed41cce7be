"""Raw results in a file, with the machine that they were measured on."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any


def write_results(
    path: pathlib.Path,
    options: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
) -> None:
    """Writes everything that was measured so far, and on what, as JSON.

    The file is replaced at once: a reader sees the old one or the new one, never half of one.
    """
    content = {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)),
        },
        "options": options,
        "results": results,
        "failures": failures,
    }
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        temporary = pathlib.Path(file.name)
        try:
            json.dump(content, file, indent=1, default=str)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
