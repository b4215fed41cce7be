"""Free ports for the ranks of one run."""

from __future__ import annotations

import random
import socket
from types import TracebackType

LOOPBACK = "127.0.0.1"

# Below the ports that the kernel gives to outgoing connections (from 32768 on Linux, from 49152
# elsewhere): a rank's connection to another rank cannot take a third rank's port.
_PORTS = range(20000, 32768)


class ReservedPorts:
    """Ports of the loopback interface that nobody else listens on.

    A port stays bound until :meth:`release`, just before the ranks start. Its UDP counterpart,
    which no rank uses, stays bound until the run ends: so a second launcher, which reserves both,
    passes by a port whose rank has not opened it yet.

    Args:
        count: how many.

    Raises:
        OSError: there are not so many free ports.

    Example:
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
        except OSError as error:  # of the limit on open files, as a rule
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
        """Gives everything back."""
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
