"""The connections of a process to other processes, which a separate thread reads and writes."""

import asyncio
import concurrent.futures
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tfdp.base.words import ranks_in_words
from tfdp.cluster.spec import is_loopback
from tfdp.errors import CollectiveTimeoutError

# The number of unread bytes that a stream holds before the sender must wait.
BUFFER_BYTES = 1 << 22

T = TypeVar("T")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def host_of_peer(writer: asyncio.StreamWriter) -> str:
    """Returns the IP address of the other side."""
    host: str = writer.get_extra_info("peername")[0]
    return host.removeprefix("::ffff:")


def bound(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on the loopback interface for a loopback host, else on all.

    TensorFlow may bind the same port while connections of the socket still stand: that needs
    REUSEADDR, which `create_server` sets.

    Raises:
      OSError: The port is in use.
      OverflowError: There is no such port.
    """
    if is_loopback(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


class Connections:
    """The streams to other processes, and the event loop that they belong to.

    Attributes:
      streams: By rank: on rank 0 the streams to all others, elsewhere the stream to rank 0.
      loop: The event loop, in a daemon thread, in which coroutines of the streams must run.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="tfdp-board", daemon=True).start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine in the loop, from any thread; the returned future holds its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop to its end; an interruption cancels the coroutine."""
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def flush(self, rank: int, timeout_seconds: float, check: Callable[[], None]) -> None:
        """Waits until all that was sent, or passed on, before this call has left the process.

        Call it before work that keeps other threads from running: others wait for what would stay.

        Args:
          rank: The rank of this process, for the error.
          timeout_seconds: How long that may take.
          check: Called again and again; raises where further waiting is vain.

        Raises:
          CollectiveTimeoutError: The time is over; the error names the ranks that do not read.
        """

        def behind() -> list[int]:
            return [
                rank
                for rank, (_, writer) in self.streams.items()
                if writer.transport.get_write_buffer_size()
            ]

        async def leave() -> None:
            while behind():
                await asyncio.sleep(0.001)

        left, deadline = self.start(leave()), time.monotonic() + timeout_seconds
        while not concurrent.futures.wait([left], min(1.0, timeout_seconds)).done:
            check()
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"Rank {rank}: what this rank sends must be read within {timeout_seconds:g} s, "
                    f"but {ranks_in_words(behind())} did not read it. Look at the output there; "
                    "`timeout_seconds` allows more time."
                )
        left.result()

    def close(self) -> None:
        """Ends the streams, once what was written to them is sent, and then the loop."""

        async def end() -> None:
            for _, writer in self.streams.values():
                writer.close()
            await asyncio.sleep(0)
            self.loop.stop()

        self.start(end())
