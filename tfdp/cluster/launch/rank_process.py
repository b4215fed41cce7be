"""A process under a supervisor, as the launcher sees it: pipes to and from the supervisor."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tfdp.cluster.launch import rank_supervisor

# The exit code of a training that a signal has stopped after a checkpoint.
STOPPED = os.EX_TEMPFAIL

MPI_LAUNCHER = -1  # stands for a rank where the process is `mpiexec`


class RankProcess:
    """A rank: its command under a supervisor, in a session or a process group of its own.

    Its standard input is empty, since N processes cannot share a terminal's.

    Args:
      rank: The rank, or :data:`MPI_LAUNCHER`.
      pipes: The launcher's ends of the pipes, in the order of :data:`rank_supervisor.PIPES`.
      supervisor: The supervisor, if the launcher itself started it.
      held: The supervisor's ends, if the supervisor opens the pipes by their names. They stay open
        until then, so that the pipes do not seem to have ended.

    Attributes:
      stdout, stderr: Descriptors to read its output from.
      report: A descriptor that becomes readable when there is news for :meth:`read_report`.
      returncode: The exit code of the command, negative for a signal; None while it runs.
      ended_at: When the command ended, by `time.monotonic()`.
      told: Whether the supervisor told of the end; else it was killed itself.
      finished: Whether nothing of the rank is left.
    """

    def __init__(
        self,
        rank: int,
        pipes: Sequence[int],
        supervisor: subprocess.Popen[bytes] | None = None,
        held: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self._control, self.report, self.stdout, self.stderr = pipes
        self._supervisor, self._held = supervisor, list(held)
        self.returncode: int | None = None
        self.ended_at = float("inf")
        self.told = self.finished = False
        self._group: int | None = None
        self._unread = b""

    @property
    def failed(self) -> bool:
        """Whether the command ended by a signal or with an exit code that tells of a failure."""
        return self.returncode not in (None, 0, STOPPED)

    @property
    def stopped(self) -> bool:
        """Whether the command ended before its end, to go on when it is started again."""
        return self.returncode == STOPPED

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
                self.let_go()
            else:
                self.returncode, self.ended_at = int(values[0]), float(values[1])
                self.told = True
        if chunk:
            return
        code = self._supervisor.wait() if self._supervisor else 0
        if self.returncode is None:
            self.returncode, self.ended_at = code or -signal.SIGKILL, now
            if self._group is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._group, signal.SIGKILL)
        self.finished = True

    def let_go(self) -> None:
        """Closes the supervisor's ends of the pipes: it has opened them, or never will."""
        _close(self._held)

    def close(self) -> None:
        """Ends the rank if it still runs, and waits until nothing of it is left."""
        os.close(self._control)  # tells the supervisor to kill
        os.close(self.report)
        if self._supervisor:
            self._supervisor.wait()
        self.let_go()
        os.close(self.stdout)
        os.close(self.stderr)


def start(rank: int, command: Sequence[str], environ: Mapping[str, str]) -> RankProcess:
    """Starts a command under a supervisor, in a session of its own.

    Args:
      rank: The rank, or :data:`MPI_LAUNCHER`.
      command: The program's path and its arguments.
      environ: The whole environment.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for name in rank_supervisor.PIPES:
            reads, writes = os.pipe()
            ours.append(writes if name == "control" else reads)
            theirs.append(reads if name == "control" else writes)
        control, report, output, errors = theirs
        supervisor = subprocess.Popen(
            [*supervised(str(control), str(report)), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=dict(environ),
            pass_fds=(control, report),
            start_new_session=True,
        )
    except BaseException:
        _close(ours)
        raise
    finally:
        _close(theirs)
    return RankProcess(rank, ours, supervisor)


def expect(rank: int, folder: str, added: Mapping[str, str]) -> RankProcess:
    """Makes named pipes for a rank that MPI's launcher will start under a supervisor.

    Args:
      rank: The rank.
      folder: A folder that nobody else may read.
      added: The variables that the rank gets beside those that MPI's launcher gives it.
    """
    own = os.path.join(folder, f"rank-{rank}-")
    entries = (os.fsencode(f"{name}={value}") for name, value in added.items())
    pathlib.Path(own + rank_supervisor.ENVIRONMENT).write_bytes(b"\0".join(entries))
    ours: list[int] = []
    held: list[int] = []
    try:
        for name in rank_supervisor.PIPES:
            os.mkfifo(own + name, 0o600)
            # The reading end first: only that can be opened while there is no other.
            reads = os.open(own + name, os.O_RDONLY | os.O_NONBLOCK)
            (held if name == "control" else ours).append(reads)
            os.set_blocking(reads, True)
            writes = os.open(own + name, os.O_WRONLY)
            (ours if name == "control" else held).append(writes)
    except BaseException:
        _close(ours)
        _close(held)
        raise
    return RankProcess(rank, ours, held=held)


def supervised(*pipes: str) -> list[str]:
    """Returns the words that start a supervisor, but for the words of its command.

    The supervisor is started as a file: it needs no package, and nothing of the user's
    `PYTHONPATH`.

    Args:
      pipes: The first two arguments of :func:`tfdp.cluster.launch.rank_supervisor.main`.
    """
    return [sys.executable, "-I", "-S", rank_supervisor.__file__, *pipes]


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
