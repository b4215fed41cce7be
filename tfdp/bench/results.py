"""The raw results in a file, with the machine that they were measured on."""

from __future__ import annotations

import json
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from tfdp.files import replace_text


def write_results(
    path: pathlib.Path,
    options: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
) -> None:
    """Writes everything that was measured so far, and the machine, as JSON.

    The file is replaced at once: a reader sees the old one or the new one, never a part.
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
    replace_text(path, json.dumps(content, indent=1, default=str))
