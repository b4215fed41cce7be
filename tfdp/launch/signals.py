"""The signals that the launcher receives, as something to wait for."""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSING = (signal.SIGTSTP, signal.SIGCONT)


class ReceivedSignals:
    """Collects signals while it is open, instead of letting them act.

    A signal that was ignored stays so, as `nohup` wants. Outside the main thread, where Python
    receives no signals, nothing is collected but what is put in.

    Example:
        >>> with ReceivedSignals() as received:
        ...     received.broken()
        ...     received.take()
        [13]
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}

    def __enter__(self) -> ReceivedSignals:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            for number in (*ENDING, *PAUSING):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, lambda number, frame: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """Readable when there is something to :meth:`take`."""
        return self._reader

    def put(self, number: int) -> None:
        """Adds a signal, from any thread."""
        os.write(self._writer, bytes([number]))

    def broken(self) -> None:
        """Adds SIGPIPE: nobody reads the launcher's output."""
        self.put(signal.SIGPIPE)

    def take(self) -> list[int]:
        """The numbers received since the last call, in order."""
        try:
            return list(os.read(self._reader, 512))
        except BlockingIOError:
            return []
