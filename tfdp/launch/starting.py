"""The start of a rank: a port, an environment, and a process under a supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType

from tfdp import machine
from tfdp.cluster.run_status import STATUS_VARIABLE
from tfdp.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdp.launch import shim

LOOPBACK = "127.0.0.1"

# Below the ports that the kernel gives to outgoing connections (from 32768 on Linux, from 49152
# elsewhere): a rank's connection to another rank cannot take a third rank's port.
_PORTS = range(20000, 32768)

DEVICES_VARIABLE = "TFDP_DEVICES_PER_PROCESS"

# TensorFlow's default, one per core, can starve the iterators of several devices on two cores.
_MIN_INTEROP_THREADS = 8
_INTEROP_THREADS_PER_DEVICE = 4

# glibc returns every freed block of this size or more to the kernel, and the next step has a page
# fault for each 4 KiB of its gradients.
_MALLOC_KEEPS_BYTES = 2**30


class ReservedPorts:
    """The reserved ports of the loopback interface, which nobody else listens on.

    A port stays bound until :meth:`release`, just before the ranks start. Its UDP counterpart,
    which no rank uses, stays bound until the run ends. A second launcher, which reserves both,
    therefore skips a port whose rank has not opened it yet.

    Args:
      count: The number of ports.

    Raises:
      OSError: There are not so many free ports.

    >>> with ReservedPorts(3) as reserved:
    ...     reserved.release()
    ...     len(set(reserved.ports))
    3
    """

    def __init__(self, count: int) -> None:
        self.ports: list[int] = []
        self._held: list[socket.socket] = []
        self._marks: list[socket.socket] = []
        why = f"no other from {_PORTS.start} to {_PORTS.stop - 1} is free; end other runs"
        try:
            for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
                if len(self.ports) == count:
                    return
                self._try(port)
        except OSError as error:  # usually of the limit on open files
            why = f"the system said: {error.strerror}; raise the limit on open files (`ulimit -n`)"
        self.close()
        raise OSError(
            f"`-n` must not exceed the ports that can be had; received {count}, and after "
            f"{len(self.ports)} ports {why}, or start fewer ranks."
        )

    def _try(self, port: int) -> None:
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            mark.close()
            raise
        try:
            mark.bind((LOOPBACK, port))
            held.bind((LOOPBACK, port))
        except OSError:
            mark.close()
            held.close()
            return
        self.ports.append(port)
        self._marks.append(mark)
        self._held.append(held)

    def release(self) -> None:
        """Lets the ranks bind the ports."""
        for held in self._held:
            held.close()
        self._held.clear()

    def close(self) -> None:
        """Closes all sockets."""
        self.release()
        for mark in self._marks:
            mark.close()
        self._marks.clear()

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def tf_config(ports: Sequence[int], rank: int) -> str:
    """Returns the `TF_CONFIG` of one rank of a cluster on this host.

    >>> tf_config([20000, 20001], rank=1)
    '{"cluster": {"worker": ["127.0.0.1:20000", "127.0.0.1:20001"]},
      "task": {"type": "worker", "index": 1}}'
    """
    workers = [f"{LOOPBACK}:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def rank_environment(
    ports: Sequence[int],
    rank: int,
    devices_per_process: int | None = None,
    status_folder: str | None = None,
    environ: Mapping[str, str] = os.environ,
    secret: str | None = None,
) -> dict[str, str]:
    """Returns the variables that one rank gets beside, or instead of, the launcher's.

    `TF_CONFIG` replaces the launcher's own and has precedence over MPI and Slurm. Thread counts and
    allocator settings yield to those that the user has set.

    Args:
      ports: One port per rank.
      rank: The rank whose environment is returned.
      devices_per_process: The number of logical CPU devices, or None to leave that alone.
      status_folder: The folder where the strategy marks that it was made.
      environ: The launcher's environment.
      secret: The secret of the ranks of this run, in place of one that the user has set.

    >>> added = rank_environment([20000], 0, environ={"OMP_NUM_THREADS": "3"})
    >>> added["TF_NUM_INTEROP_THREADS"], "OMP_NUM_THREADS" in added
    ('8', False)
    """
    share = str(max(1, len(machine.cores()) // len(ports)))
    interop = max(_MIN_INTEROP_THREADS, _INTEROP_THREADS_PER_DEVICE * (devices_per_process or 1))
    defaults = {
        "MALLOC_MMAP_THRESHOLD_": str(_MALLOC_KEEPS_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(_MALLOC_KEEPS_BYTES),
        "OMP_NUM_THREADS": share,
        "PYTHONUNBUFFERED": "1",
        "TF_NUM_INTEROP_THREADS": str(interop),
        "TF_NUM_INTRAOP_THREADS": share,
    }
    added = {name: value for name, value in defaults.items() if name not in environ}
    added["TF_CONFIG"] = tf_config(ports, rank)
    if devices_per_process is not None:
        added[DEVICES_VARIABLE] = str(devices_per_process)
    if status_folder is not None:
        added[STATUS_VARIABLE] = status_folder
    if secret is not None:
        added[SECRET_VARIABLE] = secret
    return added


class RankProcess:
    """A started rank: its command under a supervisor, in a session of its own.

    Its standard input is empty, since N processes cannot share a terminal's.

    Args:
      rank: The rank.
      command: The program's path and its arguments.
      environ: The whole environment.

    Attributes:
      stdout, stderr: Descriptors to read its output from.
      report: A descriptor that becomes readable when there is news for :meth:`read_report`.
      returncode: The exit code of the command, negative for a signal; None while it runs.
      ended_at: When the command ended, by `time.monotonic()`.
      finished: Whether nothing of the rank is left.
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
                # Started as a file: it needs no package, and nothing of the user's `PYTHONPATH`.
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
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone
            os.write(self._control, bytes([number]))

    def read_report(self, now: float) -> None:
        """Reads the supervisor's reports, without waiting once `report` is readable.

        Args:
          now: The time of the command's end, if the supervisor was killed and reports none.
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
