"""The files of one rank in a log directory: JSON lines, and TensorBoard's events."""

import json
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_LONGEST_LINE = 2**20


class LogFiles:
    """Appends to `rankN.jsonl` and to events in `tensorboard/rankN`.

    A line is written whole and at once, so that a run that is killed loses at most the line that it
    is writing. Earlier lines stay: a run that is started again goes on below them.

    Args:
      folder: The log directory; it is made if it is not there.
      rank: The rank of this process.
      tensorboard: Whether to write events.

    Raises:
      OSError: The folder or a file in it cannot be written.

    >>> import tempfile
    >>> files = LogFiles(pathlib.Path(tempfile.mkdtemp()), rank=0, tensorboard=False)
    >>> files.line("step", step=1, loss=float("nan"))
    >>> files.close()
    >>> json.loads(files.path.read_text())["loss"]
    'nan'
    """

    def __init__(self, folder: pathlib.Path, rank: int, tensorboard: bool) -> None:
        self.path = folder / f"rank{rank}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _drop_half_line(self.path)
            self._lines = self.path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise OSError(
                f"Rank {rank}: `log_dir` must be a folder that can be written, but {self.path} "
                f"cannot: {error}. Give Telemetry another folder."
            ) from error
        self._events = None
        if tensorboard:
            events = folder / "tensorboard" / f"rank{rank}"
            self._events = tf.summary.create_file_writer(str(events))

    def line(self, kind: str, **values: Any) -> None:
        """Appends a line of one of the kinds of `tfdp.base.log_lines`, with fields of its class."""
        record = {"kind": kind, "time": round(time.time(), 6), **values}
        self._lines.write(json.dumps(plain(record), allow_nan=False) + "\n")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds an event for each value."""
        if self._events is None:
            return
        # All values go into one record: `tf.summary.scalar` takes 0.2 ms for each.
        pairs = [tf.compat.v1.Summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        record = tf.compat.v1.Summary(value=pairs).SerializeToString()
        with self._events.as_default():
            tf.summary.experimental.write_raw_pb(record, step=step)
        self._events.flush()

    def last_step_before(self, epoch: int) -> int | None:
        """Returns the last step before this epoch, if an earlier training wrote one here."""
        if epoch == 0:
            return None
        with self.path.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines if '"step"' in line]
        before = [r["step"] for r in records if r.get("epoch", epoch) < epoch and "step" in r]
        return before[-1] if before else None

    def close(self) -> None:
        """Closes the lines and the events."""
        self._lines.close()
        if self._events is not None:
            self._events.close()


def plain(value: Any) -> Any:
    """Returns the value as strict JSON can hold it: NaN and infinities become strings.

    >>> plain({"loss": float("inf"), "scale": 0.5})
    {'loss': 'inf', 'scale': 0.5}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (bool, int, str, type(None))):
        return value
    if np.ndim(value) and hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist())
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(number)


def _drop_half_line(path: pathlib.Path) -> None:
    """Drops the part of its last line that a killed run had written: it is no JSON."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - _LONGEST_LINE)
        file.seek(start)
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)
