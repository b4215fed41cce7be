"""One rank, as the launcher sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tfdp.launch import shim


class RankProcess:
    """A started rank: its command under a supervisor, in a session of its own.

    Its standard input is empty, since N processes cannot share a terminal's.

    Args:
        rank: its number.
        command: the program's path and its arguments.
        environ: the whole environment.

    Attributes:
        stdout, stderr: descriptors to read its output from.
        report: a descriptor that becomes readable when there is news for :meth:`read_report`.
        returncode: the command's, negative for a signal; None while it runs.
        ended_at: when the command ended, by `time.monotonic()`.
        finished: nothing of it is left.
    """

    def __init__(self, rank: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.rank = rank
        self.returncode: int | None = None
        self.ended_at = float("inf")
        self.finished = False
        self._group: int | None = None
        self._unread = b""
        control, self._control = os.pipe()
        self.report, report = os.pipe()
        try:
            self._shim = subprocess.Popen(
                # By its file: it needs no package, and nothing of the user's `PYTHONPATH`.
                [sys.executable, "-I", "-S", shim.__file__, str(control), str(report), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                pass_fds=(control, report),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._control)
            os.close(self.report)
            raise
        finally:
            os.close(control)
            os.close(report)
        assert self._shim.stdout is not None and self._shim.stderr is not None
        self.stdout = self._shim.stdout.fileno()
        self.stderr = self._shim.stderr.fileno()

    @property
    def failed(self) -> bool:
        """Whether the command ended with another exit code than 0, or by a signal."""
        return self.returncode not in (None, 0)

    def send(self, number: int) -> None:
        """Signals the command's process group; SIGKILL reaches all its descendants."""
        with contextlib.suppress(BrokenPipeError):  # it is gone
            os.write(self._control, bytes([number]))

    def read_report(self, now: float) -> None:
        """Takes note of what the supervisor says, without waiting once `report` is readable.

        Args:
            now: counts as the command's end if the supervisor was killed and says none.
        """
        chunk = os.read(self.report, 512)
        self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        for word, *values in map(bytes.split, lines):
            if word == b"started":
                self._group = int(values[0])
            else:
                self.returncode, self.ended_at = int(values[0]), float(values[1])
        if chunk:
            return
        code = self._shim.wait()
        if self.returncode is None:
            self.returncode, self.ended_at = code or -signal.SIGKILL, now
            self._kill_group()
        self.finished = True

    def _kill_group(self) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def close(self) -> None:
        """Ends the rank if it still runs, and waits until nothing of it is left."""
        os.close(self._control)  # tells the supervisor to kill
        os.close(self.report)
        self._shim.wait()
        for stream in (self._shim.stdout, self._shim.stderr):
            if stream is not None:
                stream.close()
