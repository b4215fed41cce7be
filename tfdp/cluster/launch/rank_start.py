"""The start of a rank: its command, port, place among the ranks, and environment."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence

from tfdp.base import machine
from tfdp.base.gpus import VISIBLE
from tfdp.cluster.rank_status import STATUS_VARIABLE
from tfdp.cluster.secret import VARIABLE as SECRET_VARIABLE

LOOPBACK = "127.0.0.1"

# Below the ports that the kernel gives to outgoing connections (from 32768 on Linux, from 49152
# elsewhere): a rank's connection to another rank cannot take a third rank's port.
_PORTS = range(20000, 32768)

DEVICES_VARIABLE = "TFDP_DEVICES_PER_PROCESS"

# TensorFlow's default, one per core, can starve the iterators of several devices on two cores.
_MIN_INTEROP_THREADS = 8
_INTEROP_THREADS_PER_DEVICE = 4

NOT_FOUND = 127  # the exit codes that a shell gives

NOT_EXECUTABLE = 126


@dataclasses.dataclass(frozen=True)
class RankGroup:
    """The ranks of one attempt, and those of them that this host starts.

    Attributes:
      addresses: The "host:port" of every rank.
      first: The first rank of this host.
      gpus: The `CUDA_VISIBLE_DEVICES` of each rank of this host; None for the launcher's own.

    >>> group = RankGroup(("a:1", "b:1", "b:2"), first=1, gpus=(None, None))
    >>> group.world_size, list(group.ranks)
    (3, [1, 2])
    """

    addresses: tuple[str, ...]
    first: int
    gpus: tuple[str | None, ...]

    @classmethod
    def of_this_host(cls, ports: Sequence[int], gpus: Sequence[str | None]) -> RankGroup:
        """Returns the group of ranks that all run here, and listen on the loopback interface.

        >>> RankGroup.of_this_host([20000], [None]).addresses
        ('127.0.0.1:20000',)
        """
        return cls(tuple(f"{LOOPBACK}:{port}" for port in ports), 0, tuple(gpus))

    @property
    def world_size(self) -> int:
        """The number of all ranks."""
        return len(self.addresses)

    @property
    def ranks(self) -> range:
        """The ranks of this host."""
        return range(self.first, self.first + len(self.gpus))


class TooManyRanksError(OSError):
    """An error where the system gives no more processes, files, threads or ports.

    Attributes:
      started: The number of ranks of this host for which it gave them.
    """

    def __init__(self, message: str, started: int) -> None:
        super().__init__(message)
        self.started = started


class ReservedPorts:
    """The reserved ports, which nobody else listens on: of the loopback interface, or of all.

    A port stays bound until :meth:`release`, just before the ranks start. Its UDP counterpart,
    which no rank uses, stays bound until the run ends. A second launcher, which reserves both,
    therefore skips a port whose rank has not opened it yet.

    Args:
      count: The number of ports.
      host: The address of the interface; "" for all.

    Raises:
      TooManyRanksError: There are not so many free ports.

    >>> with ReservedPorts(3) as reserved:
    ...     reserved.release()
    ...     len(set(reserved.ports))
    3
    """

    def __init__(self, count: int, host: str = LOOPBACK) -> None:
        self._host = host
        self.ports: list[int] = []
        self._held: list[socket.socket] = []
        self._marks: list[socket.socket] = []
        why = f"no other from {_PORTS.start} to {_PORTS.stop - 1} is free; end other runs"
        try:
            for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
                if len(self.ports) < count:
                    self._try(port)
            if len(self.ports) == count:
                return
        except OSError as error:  # usually of the limit on open files
            why = f"the system said: {error.strerror}; raise the limit on open files (`ulimit -n`)"
        self.close()
        raise TooManyRanksError(
            f"`-n` must not exceed the ports that can be had; received {count}, and after "
            f"{len(self.ports)} ports {why}, or start fewer ranks.",
            len(self.ports),
        )

    def _try(self, port: int) -> None:
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            mark.close()
            raise
        try:
            mark.bind((self._host, port))
            held.bind((self._host, port))
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

    def __exit__(self, *raised: object) -> None:
        self.close()


def tf_config(addresses: Sequence[str], rank: int) -> str:
    """Returns the `TF_CONFIG` of one rank.

    >>> tf_config(["127.0.0.1:20000", "127.0.0.1:20001"], rank=1)
    '{"cluster": {"worker": ["127.0.0.1:20000", "127.0.0.1:20001"]},
      "task": {"type": "worker", "index": 1}}'
    """
    workers = list(addresses)
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def rank_environment(
    group: RankGroup,
    rank: int,
    devices_per_process: int | None = None,
    status_folder: str | None = None,
    environ: Mapping[str, str] = os.environ,
    secret: str | None = None,
) -> dict[str, str]:
    """Returns the variables that one rank gets beside, or instead of, the launcher's.

    `TF_CONFIG` replaces the launcher's own and has precedence over MPI and Slurm. Thread counts,
    oneDNN's switch (:func:`tfdp.base.machine.fast_kernels`) and what is set of GPUs
    (:func:`tfdp.base.machine.gpu_settings`) yield to what the user has set.

    Args:
      group: The ranks.
      rank: The rank of this host whose environment is returned.
      devices_per_process: The number of logical CPU devices, or None to leave that alone.
      status_folder: The folder where ranks tell of themselves.
      environ: The launcher's environment.
      secret: The secret of the ranks of this run, in place of one that the user has set.

    >>> group = RankGroup.of_this_host([20000], [None])
    >>> added = rank_environment(group, 0, environ={"OMP_NUM_THREADS": "3"})
    >>> added["TF_NUM_INTEROP_THREADS"], "OMP_NUM_THREADS" in added
    ('8', False)
    """
    share = str(max(1, len(machine.cores()) // len(group.ranks)))
    interop = max(_MIN_INTEROP_THREADS, _INTEROP_THREADS_PER_DEVICE * (devices_per_process or 1))
    defaults = {
        "OMP_NUM_THREADS": share,
        "PYTHONUNBUFFERED": "1",
        "TF_NUM_INTEROP_THREADS": str(interop),
        "TF_NUM_INTRAOP_THREADS": share,
        **machine.fast_kernels(),
        **machine.gpu_settings(),
    }
    added = {name: value for name, value in defaults.items() if name not in environ}
    added["TF_CONFIG"] = tf_config(group.addresses, rank)
    gpus = group.gpus[rank - group.first]
    if devices_per_process is not None:
        added[DEVICES_VARIABLE] = str(devices_per_process)
    if gpus is not None:
        added[VISIBLE] = gpus
    if status_folder is not None:
        added[STATUS_VARIABLE] = status_folder
    if secret is not None:
        added[SECRET_VARIABLE] = secret
    return added


class CommandError(ValueError):
    """An error where the command cannot be started.

    Args:
      message: What must hold, what was received and the fix.
      exit_code: The code that a shell would exit with: 127 (not found) or 126 (not executable).
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def resolve(words: Sequence[str]) -> list[str]:
    """Returns the command with its program's full name.

    If the first word ends in `.py`, it is a script for the Python that runs the launcher, and the
    script's output is not buffered. Every other first word is looked up as by a shell, and then
    beside that Python, where the programs of an environment are that is not activated.

    Raises:
      CommandError: There is no such script or program, or it is not executable.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     script = pathlib.Path(folder, "train.py")
    ...     script.touch()
    ...     python, *rest = resolve([str(script), "--epochs", "3"])
    >>> python == sys.executable, rest[0], rest[-2:]
    (True, '-u', ['--epochs', '3'])
    >>> resolve(["no-such-program"])
    Traceback (most recent call last):
        ...
    tfdp.cluster.launch.rank_start.CommandError: `COMMAND` must be a program on the PATH, one ...
    """
    program, *arguments = words
    if program.endswith(".py"):
        if not os.path.isfile(program):
            raise CommandError(
                f"`COMMAND` must be a script that exists; received {program!r}, and there is no "
                f"such file in {os.getcwd()}; give the path of the script.",
                NOT_FOUND,
            )
        return [sys.executable, "-u", program, *arguments]
    found = shutil.which(program) or shutil.which(program, path=os.path.dirname(sys.executable))
    if found is not None:
        return [found, *arguments]
    if os.path.isfile(program) and os.path.dirname(program):
        raise CommandError(
            f"`COMMAND` must be executable; received {program!r}, which is not; "
            f"do `chmod +x {program}`.",
            NOT_EXECUTABLE,
        )
    raise CommandError(
        f"`COMMAND` must be a program on the PATH, one beside {sys.executable}, or a script that "
        f"ends in .py; received {program!r}, which is neither; mend its name, or give its path "
        f"(`./{program}`).",
        NOT_FOUND,
    )
