"""The supervisor of one rank: it stands between the launcher and the rank's command.

The supervisor is started as a file by `python -I -S`. It imports only a little of the standard
library.

It reads signal numbers, a byte each, from the control pipe and passes them to the command's
process group. It writes `started PID` and `ended CODE TIME` to the report pipe; CODE is negative
for a signal, TIME is `time.monotonic()`, which all processes of a host share.

Nothing that the command started outlives the supervisor. Processes that are left when the command
ends get SIGTERM, and after a grace period SIGKILL. When the control pipe closes, because the
launcher ended in whatever way, all get SIGKILL at once. On Linux the supervisor inherits the
orphans among the command's descendants, so that it finds even those that have left the process
group; elsewhere only the group can be ended. If the supervisor itself is killed, the kernel kills
the command (Linux).

Under MPI it is MPI's launcher that starts the supervisor, and the rank's input and output must not
go through that. The supervisor then takes its rank from the variable that MPI's launcher sets, and
opens the pipes by their names. If MPI's launcher or its proxy is gone, the supervisor ends the rank
and tells nothing.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

GRACE_SECONDS = 5.0

# The names of a rank's pipes and of the file with its variables, behind `rank-1-`.
PIPES = ("control", "report", "stdout", "stderr")
ENVIRONMENT = "environment"

# MPICH's launcher sends this to the ranks that live when another has ended. What becomes of them is
# the business of `tfdp run`.
_SENT_BY_MPI = ("SIGUSR1",)

_POLL_SECONDS = 0.02
_LOOK_SECONDS = 1.0
_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>


def main(arguments: Sequence[str]) -> int:
    """Supervises one command.

    Args:
      arguments: The control pipe's descriptor, the report pipe's, and the command's words. Under
        MPI the folder of the named pipes and the variable of the rank stand for the descriptors.
    """
    first, second, *words = arguments
    control, report = (int(first), int(second)) if first.isdecimal() else _join(first, second)
    for descriptor in (control, report):
        os.set_inheritable(descriptor, False)  # the command must not have them
    woken = _wake_when_a_child_ends()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getppid()
    command = _Command(words)
    os.write(report, b"started %d\n" % command.pid)
    while not command.reap():
        for number in _orders(control, woken, _LOOK_SECONDS):
            command.obey(number)
        if os.getppid() != parent:  # MPI's launcher is gone, or its proxy on this host
            command.obey(signal.SIGKILL)
            return 1
    os.write(report, f"ended {command.returncode} {time.monotonic()}\n".encode())
    _end_leftovers(command, control, woken)
    return 0


def _join(folder: str, variable: str) -> tuple[int, int]:
    """Connects this rank of MPI to the launcher, and returns the control and the report pipe.

    If the launcher is gone, an open fails and does not wait.
    """
    for name in _SENT_BY_MPI:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    own = os.path.join(folder, f"rank-{os.environ[variable]}-")
    control, report, output, errors = (
        os.open(own + name, mode | os.O_NONBLOCK)
        for name, mode in zip(PIPES, (os.O_RDONLY, *[os.O_WRONLY] * 3), strict=True)
    )
    for descriptor in (control, report, output, errors):
        os.set_blocking(descriptor, True)
    for standard, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, errors)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    with open(own + ENVIRONMENT, "rb") as file:
        for entry in file.read().split(b"\0"):
            variable, _, value = os.fsdecode(entry).partition("=")
            os.environ[variable] = value
    return control, report


class _Command:
    """The command, in a process group of its own, with all its descendants."""

    def __init__(self, words: Sequence[str]) -> None:
        self.returncode: int | None = None
        self._has_children = True
        self.pid = os.fork()
        if self.pid == 0:
            _become(words)
        # Set here, too, as a signal may come before the child runs; this fails once the command
        # runs.
        _succeeds(os.setpgid, self.pid, self.pid)

    def reap(self) -> bool:
        """Collects ended processes, orphans too, and returns whether the command has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                break
            if pid == 0:
                break
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode is not None

    def obey(self, number: int) -> None:
        """Passes a signal to the group; SIGKILL goes to every descendant, until none is left."""
        if number != signal.SIGKILL:
            self.signal_group(number)
            return
        while self.left():
            self.signal_all(number)
            time.sleep(_POLL_SECONDS)

    def signal_group(self, number: int) -> None:
        """Signals the members of the group."""
        _succeeds(os.killpg, self.pid, number)

    def signal_all(self, number: int) -> None:
        """Signals the group and every descendant that left it."""
        self.signal_group(number)
        for pid in _descendants() if _LINUX else ():
            _succeeds(os.kill, pid, number)

    def left(self) -> bool:
        """Returns whether any process is left.

        On Linux one is if this process has a child, whose orphans become its own. That is known at
        once, while the processes that /proc lists may fork and end before they are read.
        """
        self.reap()
        if _LINUX:
            return self._has_children
        return _succeeds(os.killpg, self.pid, 0)


def _succeeds(call: Callable[[int, int], None], target: int, value: int) -> bool:
    """Returns whether the process or group exists and is ours."""
    try:
        call(target, value)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _become(words: Sequence[str]) -> None:
    """Becomes the command, in the child; never returns."""
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Exec would hand on what is ignored here: by Python the first two, by `_join` the last.
        for name in ("SIGPIPE", "SIGXFSZ", *_SENT_BY_MPI):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execv(words[0], list(words))
    except BaseException as error:
        os.write(2, f"tfdp run: {words[0]} cannot be started: {error}\n".encode())
        os._exit(126)


def _end_leftovers(command: _Command, control: int, woken: int) -> None:
    if command.left():
        command.signal_all(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while command.left() and time.monotonic() < deadline:
        if signal.SIGKILL in _orders(control, woken, _POLL_SECONDS):
            break
    command.obey(signal.SIGKILL)


def _orders(control: int, woken: int, seconds: float) -> bytes:
    """Waits for the launcher's signal numbers or a child's end; SIGKILL if the launcher is gone."""
    ready = select.select([control, woken], [], [], seconds)[0]
    if woken in ready:
        os.read(woken, 512)
    if control not in ready:
        return b""
    return os.read(control, 512) or bytes([signal.SIGKILL])


def _wake_when_a_child_ends() -> int:
    """Returns a descriptor that becomes readable at each SIGCHLD."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reader


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _descendants() -> list[int]:
    """Returns the living processes below this one, by Linux's /proc."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # the process ended meanwhile
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    below = [os.getpid()]
    while below:
        offspring = children.get(below.pop(), [])
        found += offspring
        below += offspring
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
