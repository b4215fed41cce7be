"""One launcher's side of the rendezvous: it says what it has, and hears what to do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import queue
from collections.abc import Sequence
from typing import Any

from tfdp.cluster import wire
from tfdp.cluster.connections import Connections, Stream
from tfdp.cluster.handshake import SecretError, connect
from tfdp.cluster.launch.nodes import messages
from tfdp.cluster.launch.restarting import Attempt
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.cluster.launch.supervision import Order
from tfdp.cluster.spec import host_of, port_of
from tfdp.errors import ClusterError

_ANSWER_SECONDS = 10.0
_LEAVING_SECONDS = 5.0

LOST = "lost"  # what is heard where the rendezvous is lost


@dataclasses.dataclass(frozen=True)
class Heard:
    """What the rendezvous says, or :data:`LOST`."""

    kind: str
    said: dict[str, Any]


class Node:
    """A launcher among others.

    Args:
      options: The options of the run.
      secret: The secret that every node must know.
      serves: Whether this launcher serves the rendezvous.
    """

    def __init__(self, options: RunOptions, secret: str, serves: bool) -> None:
        self._options, self._secret, self._serves = options, secret, serves
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._connections: Connections | None = None
        self._stream: Stream | None = None
        self._listening: concurrent.futures.Future[None] | None = None
        self._finished: Heard | None = None
        self._stop = False
        self.reason = ""

    def join(self, attempts: int) -> None:
        """Joins the rendezvous; does nothing where it has joined.

        Args:
          attempts: The number of attempts that this node has seen.

        Raises:
          OSError: Nobody answers there.
          ClusterError: What answers has another secret.
        """
        if self._stream is not None:
            return
        assert self._options.rendezvous is not None
        address = self._options.rendezvous
        own = messages.introduction(self._options, self._serves, attempts)
        self._connections = Connections()
        try:
            self._stream = self._connections.run(
                _joined(host_of(address), port_of(address), own, self._secret)
            )
        except BaseException:
            self.close()
            raise
        self._heard = queue.SimpleQueue()
        self._stop = False
        self._listening = self._connections.start(self._listen(self._stream, self._heard))

    def ready(self, ports: Sequence[int]) -> None:
        """Says that ranks may start here, which will listen on these ports."""
        self._stop, self.reason = False, ""
        self._say(messages.READY, ports=list(ports))

    def ended(self, attempt: Attempt, how: messages.How) -> None:
        """Says how the ranks of this node have ended."""
        self._say(
            messages.ENDED,
            how=how.value,
            code=attempt.code,
            message=attempt.message,
            is_consequence=attempt.is_consequence,
        )

    def did_not_start(self, message: str) -> None:
        """Says that the ranks of this node could not be started, and fewer can be."""
        how = messages.How.FAILED.value
        self._say(messages.ENDED, how=how, code=1, message=message, is_consequence=False)

    def hear(self, seconds: float) -> Heard | None:
        """Returns what the rendezvous says next, of this attempt's end or the next one's begin.

        The end of the run is said again and again.
        """
        if self._finished is not None:
            return self._finished
        try:
            heard = self._heard.get(timeout=seconds)
        except queue.Empty:
            return Heard(LOST, {}) if self._stream is None else None
        if heard.kind == LOST:
            self.close()
        elif heard.kind == messages.FINISHED:
            self._finished = heard
        return heard

    def order(self) -> Order | None:
        """Returns what the ranks that run are to do, by all that the rendezvous has said so far."""
        while (heard := self.hear(0.0001)) is not None:
            if heard.kind == messages.STOP:
                self._stop = True
            elif heard.kind in (messages.END, messages.FINISHED):
                self.reason = str(heard.said.get("reason") or heard.said.get("message") or "")
                self.reason = self.reason or "the run has ended"
                if self._finished is not None:
                    break
            elif heard.kind == LOST:
                self.reason = self.reason or "the rendezvous was lost"
                break
        if self.reason:
            return Order.END
        return Order.STOP if self._stop else None

    def close(self) -> None:
        """Leaves the rendezvous, once what was said is sent."""
        connections, stream = self._connections, self._stream
        self._connections = self._stream = None
        if connections is None:
            return
        if self._listening is not None:
            self._listening.cancel()
        if stream is not None:
            connections.run(_left(stream))
        connections.close()

    def _say(self, kind: str, **fields: Any) -> None:
        if self._connections is None or self._stream is None:
            return  # it is lost, which is heard
        writer = self._stream[1]
        frame = wire.frame({"type": kind, **fields})
        self._connections.loop.call_soon_threadsafe(writer.write, frame)

    async def _listen(self, stream: Stream, heard: queue.SimpleQueue[Heard]) -> None:
        alive = asyncio.ensure_future(_say_alive(stream))
        try:
            while True:
                async with asyncio.timeout(messages.SILENT_SECONDS):
                    said, _ = await wire.read(stream[0])
                if said.get("type") != messages.ALIVE:
                    heard.put(Heard(str(said.get("type")), said))
        except OSError:
            heard.put(Heard(LOST, {}))
        finally:
            alive.cancel()


async def _left(stream: Stream) -> None:
    stream[1].close()
    with contextlib.suppress(OSError):  # TimeoutError is one
        async with asyncio.timeout(_LEAVING_SECONDS):
            await stream[1].wait_closed()
    await asyncio.sleep(0)  # for the tasks that were cancelled


async def _say_alive(stream: Stream) -> None:
    while True:
        await asyncio.sleep(messages.ALIVE_SECONDS)
        stream[1].write(wire.frame({"type": messages.ALIVE}))


async def _joined(host: str, port: int, own: dict[str, Any], secret: str) -> Stream:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await connect(host, port, own, secret)
    except SecretError:
        raise ClusterError(
            "`TFDP_SECRET` must be the same on all nodes; received another here than at the "
            "rendezvous; give all the same, or the same file in `TFDP_SECRET_FILE`."
        ) from None
