"""What `tfdp run` can be asked for."""

from __future__ import annotations

import dataclasses
import os
import pathlib


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The choices of one run; they are checked here.

    Args:
        processes: how many ranks to start, at least 1.
        command: the words of the command that each rank runs.
        devices_per_process: logical CPU devices in each rank, or None to leave that alone.
        log_dir: a folder for one log per rank, or None for no files.
        timeout_seconds: the limit of the whole run, or None.
        dry_run: print what would be started, and start nothing.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> RunOptions(processes=2, command=("train.py", "--epochs", "3")).timeout_seconds is None
        True
    """

    processes: int
    command: tuple[str, ...]
    devices_per_process: int | None = None
    log_dir: pathlib.Path | None = None
    timeout_seconds: float | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ValueError(f"`-n` must be at least 1; received {self.processes}; do `-n 2`.")
        if not self.command:
            raise ValueError(
                f"`COMMAND` must follow the options; received none; "
                f"do `tfdp run -n {self.processes} train.py`."
            )
        if self.devices_per_process is not None and self.devices_per_process < 1:
            raise ValueError(
                f"`devices-per-process` must be at least 1; received {self.devices_per_process}; "
                "do `--devices-per-process 1`."
            )
        # Written so that NaN is refused too.
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise ValueError(
                f"`timeout` must be positive, in seconds; received {self.timeout_seconds:g}; "
                "do `--timeout 3600`, or leave it out for no limit."
            )
        if self.log_dir is not None and os.path.exists(self.log_dir) and not self.log_dir.is_dir():
            raise ValueError(
                f"`log-dir` must be a folder, or a path where one can be made; "
                f"received {str(self.log_dir)!r}, a file; do `--log-dir {self.log_dir}-logs`."
            )
