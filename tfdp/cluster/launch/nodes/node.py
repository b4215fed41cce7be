"""One launcher's side of the rendezvous: it says what it has, and hears what to do."""

import asyncio
import concurrent.futures
import contextlib
import queue
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tfdp.cluster import secret as secrets
from tfdp.cluster import wire
from tfdp.cluster.connections import Connections, Stream
from tfdp.cluster.handshake import SecretError, connect
from tfdp.cluster.launch.attempt import Starter
from tfdp.cluster.launch.nodes import messages
from tfdp.cluster.launch.nodes.node_rendezvous import serve
from tfdp.cluster.launch.places import Say, look_up
from tfdp.cluster.launch.rank_start import LOOPBACK, RankGroup
from tfdp.cluster.launch.restarting import ANEW, RESTART_COUNT, Attempt, Decision, SingleNode
from tfdp.cluster.launch.run_options import JOIN_SECONDS
from tfdp.cluster.launch.supervision import Order
from tfdp.cluster.launch.verdict import EndedError
from tfdp.cluster.secret import HOW_TO_GIVE_ONE
from tfdp.cluster.socket_filter import PEERS
from tfdp.cluster.spec import host_of, is_loopback, port_of
from tfdp.errors import ClusterError

_ANSWER_SECONDS = 10.0
_LEAVING_SECONDS = 5.0
_PAUSE_SECONDS = 0.5  # between two attempts to join

Message = dict[str, Any]

_LOST = "lost"  # the type of what is heard where the rendezvous is lost


class Node:
    """A launcher among others, with the side of :class:`SingleNode` for its own.

    Args:
      starter: What every attempt has in common.
      secret: The secret that every node must know.
      serves: Whether this launcher serves the rendezvous.
    """

    def __init__(self, starter: Starter, secret: str, serves: bool) -> None:
        assert starter.options.rendezvous is not None
        self._starter, self._secret, self._serves = starter, secret, serves
        self._address = starter.options.rendezvous
        self.interface = LOOPBACK if is_loopback(host_of(self._address)) else ""
        self._heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._connections: Connections | None = None
        self._stream: Stream | None = None
        self._listening: concurrent.futures.Future[None] | None = None
        self._finished: Message | None = None
        self._takes_part = self._stop = False
        self.reason = ""

    def start(
        self, ports: Sequence[int], gpus: Sequence[str | None], attempts: int
    ) -> tuple[RankGroup, str, dict[str, str]]:
        """Joins the rendezvous, and returns what it says of the start.

        Raises:
          EndedError: The run has ended, or nobody takes this node in for long.
          ClusterError: What answers has another secret.
        """
        options = self._starter.options
        seconds = options.join_timeout_seconds or JOIN_SECONDS
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._join(attempts)
            except OSError as error:
                why = str(error) or "it is silent"
            else:
                self._stop, self.reason = False, ""
                self._say(messages.READY, ports=list(ports))
                joined = time.monotonic()
                heard = self._wait_for(messages.START, messages.FINISHED, messages.REFUSED)
                if heard["type"] == messages.START:
                    break
                if heard["type"] != _LOST:
                    text = heard.get("message") or heard.get("reason") or ""
                    raise EndedError(int(heard.get("code", 2)), str(text))
                why = "it was lost again"
                deadline += time.monotonic() - joined  # a node that is taken in may wait for long
            if time.monotonic() >= deadline:
                raise EndedError(
                    1,
                    f"`rendezvous` must be the address of a host where this command runs, too; "
                    f"received {self._address}, and in {seconds:g} s nobody took this node "
                    f"in: {why}; start the command there, or open its port.",
                )
            look_up(self._starter, _PAUSE_SECONDS)
        self._takes_part = True
        added = {RESTART_COUNT: str(int(heard["attempt"]))}
        if heard["peers"] and PEERS not in self._starter.environ:
            added[PEERS] = " ".join(heard["peers"])
        group = RankGroup(tuple(heard["addresses"]), int(heard["first"]), tuple(gpus))
        return group, self._secret, added

    def order(self) -> Order | None:
        """Returns what the ranks that run are to do, by all that the rendezvous has said so far."""
        while (heard := self._hear(0.0001)) is not None:
            if heard["type"] == messages.STOP:
                self._stop = True
            elif heard["type"] in (messages.END, messages.FINISHED):
                self.reason = str(heard.get("reason") or heard.get("message") or "")
                self.reason = self.reason or "the run has ended"
                if self._finished is not None:
                    break
            elif heard["type"] == _LOST:
                self.reason = self.reason or "the rendezvous was lost"
                break
        if self.reason:
            return Order.END
        return Order.STOP if self._stop else None

    def did_not_start(self, message: str) -> Decision:
        """Says that the ranks of this node could not be started, if others wait for them."""
        if not self._takes_part:
            return ANEW
        return self._ended(messages.How.FAILED, 1, message)

    def ended(self, attempt: Attempt) -> Decision:
        """Says how the ranks of this node have ended, and returns what follows for all nodes.

        A node that leaves by a signal does not wait for that: the others are still at work.
        """
        how = messages.how(attempt)
        return self._ended(how, attempt.code, attempt.message, attempt.is_consequence)

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

    def _join(self, attempts: int) -> None:
        """Joins the rendezvous; does nothing where it has joined."""
        if self._stream is not None:
            return
        own = messages.introduction(self._starter.options, self._serves, attempts)
        self._connections = Connections()
        try:
            self._stream = self._connections.run(
                _joined(host_of(self._address), port_of(self._address), own, self._secret)
            )
        except BaseException:
            self.close()
            raise
        self._heard = queue.SimpleQueue()
        self._listening = self._connections.start(self._listen(self._stream, self._heard))

    def _ended(
        self, how: messages.How, code: int, message: str, is_consequence: bool = False
    ) -> Decision:
        self._takes_part = False
        self._say(
            messages.ENDED,
            how=how.value,
            code=code,
            message=message,
            is_consequence=is_consequence,
        )
        if how is messages.How.LEFT:
            return Decision(False, 0.0, code, message)
        heard = self._wait_for(messages.AGAIN, messages.FINISHED)
        if heard["type"] == _LOST:
            return Decision(True, 0.0, 0, "the rendezvous was lost; looks for it again.")
        if heard["type"] == messages.FINISHED:
            return Decision(False, 0.0, int(heard["code"]), str(heard["message"]))
        return Decision(True, float(heard["pause"]), 0, str(heard["message"]))

    def _wait_for(self, *kinds: str) -> Message:
        """Waits until the rendezvous says one of these, or is lost: at the latest when silent."""
        while True:
            heard = self._hear(0.05)
            if heard is not None and heard["type"] in {*kinds, _LOST}:
                return heard
            look_up(self._starter)

    def _hear(self, seconds: float) -> Message | None:
        """Returns what the rendezvous says next, of this attempt's end or the next one's begin.

        The end of the run is said again and again.
        """
        if self._finished is not None:
            return self._finished
        try:
            heard = self._heard.get(timeout=seconds)
        except queue.Empty:
            return {"type": _LOST} if self._stream is None else None
        if heard["type"] == _LOST:
            self.close()
        elif heard["type"] == messages.FINISHED:
            self._finished = heard
        return heard

    def _say(self, kind: str, **fields: Any) -> None:
        if self._connections is None or self._stream is None:
            return  # it is lost, which is heard
        writer = self._stream[1]
        frame = wire.frame({"type": kind, **fields})
        self._connections.loop.call_soon_threadsafe(writer.write, frame)

    async def _listen(self, stream: Stream, heard: queue.SimpleQueue[Message]) -> None:
        alive = asyncio.ensure_future(_say_alive(stream))
        try:
            while True:
                async with asyncio.timeout(messages.SILENT_SECONDS):
                    said, _ = await wire.read(stream[0])
                if said.get("type") != messages.ALIVE:
                    heard.put(said)
        except OSError:
            heard.put({"type": _LOST})
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


@contextlib.contextmanager
def node_of(starter: Starter, say: Say) -> Iterator[SingleNode | Node]:
    """Yields this launcher's side; ends the run on all nodes where that of the rendezvous fails.

    Raises:
      ClusterError: Others take part, and there is no secret.
    """
    options = starter.options
    if options.nodes is None:
        yield SingleNode(options, starter.end)
        return
    secret = secrets.in_environment(starter.environ)
    if secret is None:
        raise ClusterError(
            f"`--nodes` must come with a secret by which the launchers know each other; received "
            f"none. {HOW_TO_GIVE_ONE}"
        )
    served = serve(options, secret, say)
    node = Node(starter, secret, served is not None)
    try:
        yield node
    except Exception as error:
        if served is not None:
            code = error.code if isinstance(error, EndedError) else 1
            served.finish(code, f"the node of the rendezvous has ended: {error}")
        raise
    finally:
        node.close()
        if served is not None:
            served.close()
