"""The log of attempts: a line for each, beside what Telemetry writes, for `tfdp report`."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

from tfdp.base.log_lines import ATTEMPTS, AttemptLine
from tfdp.cluster.launch.restarting import Attempt, in_short


def keep(attempt: Attempt) -> str:
    """Appends a line to `attempts.jsonl` in the folder that the training's Telemetry writes to.

    Does nothing where there is none.

    Returns:
      What is said where the line cannot be written; else nothing.
    """
    if attempt.log_dir is None:
        return ""
    first, last = attempt.steps or (None, None)
    entry = AttemptLine(
        time=round(attempt.began, 3),
        ranks=attempt.world_size,
        seconds=round(attempt.seconds, 3),
        first_step=first,
        last_step=last,
        code=attempt.code,
        reason=in_short(attempt),
    )
    line = {"kind": "attempt", **dataclasses.asdict(entry)}
    path = pathlib.Path(attempt.log_dir, ATTEMPTS)
    try:
        with path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            cut = file.read(1) not in (b"", b"\n")  # a line that was not written whole
            file.write(b"\n" * cut + json.dumps(line).encode() + b"\n")
    except OSError as error:
        return f"{os.fspath(path)} must be writable, and gives: {error.strerror}; a line is lost."
    return ""
