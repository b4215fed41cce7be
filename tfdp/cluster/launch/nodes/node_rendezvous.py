"""The rendezvous of launchers: it says when they start, with which ranks, and when they end."""

import asyncio
import concurrent.futures
import dataclasses
import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfdp.cluster import wire
from tfdp.cluster.connections import BUFFER_BYTES, Connections, Stream, bound, host_of_peer
from tfdp.cluster.handshake import SecretError, Strangers
from tfdp.cluster.launch.nodes import messages
from tfdp.cluster.launch.nodes.decision import NodeEnd, decide
from tfdp.cluster.launch.restarting import Restarts
from tfdp.cluster.launch.run_options import JOIN_SECONDS, RunOptions
from tfdp.cluster.spec import host_of, is_loopback, join_address, port_of

_LAST_CALL_SECONDS = 3.0  # without a new node, after which fewer than the most nodes start
_ENDING_SECONDS = 60.0  # for a node to end its ranks
# For the others to stop where one leaves by a signal: longer than its ranks have for a checkpoint.
_FOLLOWING_SECONDS = 45.0
_ENDS_THE_OTHERS = (messages.How.FAILED, messages.How.OVER)
_CANCELLING_SECONDS = 0.1
_LEAVING_SECONDS = 10.0  # for the nodes to hear of the end


@dataclasses.dataclass(eq=False)
class _JoinedNode:
    """A launcher, as the rendezvous knows it."""

    name: str
    serves: bool
    attempts: int
    stream: Stream
    host: str
    ports: list[int] | None = None  # once it is ready
    end: NodeEnd | None = None

    def say(self, kind: str, **fields: Any) -> None:
        self.stream[1].write(wire.frame({"type": kind, **fields}))


class Rendezvous:
    """The rendezvous, served in a thread.

    Args:
      options: The options of the run.
      secret: The secret that every node must know.
      listener: The socket that is bound to the rendezvous' port.
      say: Called with what the user should know, in the thread.
    """

    def __init__(
        self,
        options: RunOptions,
        secret: str,
        listener: socket.socket,
        say: Callable[[str], None],
    ) -> None:
        assert options.rendezvous is not None
        self._options, self._say = options, say
        self._host = host_of(options.rendezvous)
        self._alike = messages.alike(options)
        self._seconds = options.join_timeout_seconds or JOIN_SECONDS
        self._restarts = Restarts(options.max_restarts, options.restart_window_seconds)
        self._nodes: list[_JoinedNode] = []  # in the order in which they came
        self._own_hosts: set[str] = set()  # this host's, as the others reach it
        self._strangers = Strangers(secret)
        self._meetings: set[asyncio.Task[Any]] = set()
        self._conducting: asyncio.Task[None] | None = None
        self._connections = Connections()
        self._done: concurrent.futures.Future[None] = self._connections.start(self._serve(listener))

    def finish(self, code: int, message: str) -> None:
        """Ends the run, from another thread: all nodes hear of it. Nothing happens after its end.

        Args:
          code: The exit code of the run.
          message: What is said on all nodes.
        """
        self._connections.loop.call_soon_threadsafe(self._finish, code, message)

    def _finish(self, code: int, message: str) -> None:
        if self._conducting is None or self._conducting.done():
            return
        self._conducting.cancel()
        for node in self._nodes:
            node.say(messages.FINISHED, code=code, message=message)

    def close(self) -> None:
        """Ends the rendezvous, once the nodes have heard how the run ended."""
        try:
            self._done.result(2 * _LEAVING_SECONDS)
        except (TimeoutError, concurrent.futures.CancelledError):
            self._done.cancel()
            self._connections.run(asyncio.sleep(_CANCELLING_SECONDS))
        self._connections.close()

    async def _serve(self, listener: socket.socket) -> None:
        self._changed = asyncio.Event()
        server = await asyncio.start_server(self._meet, sock=listener, limit=BUFFER_BYTES)
        alive = asyncio.ensure_future(self._say_alive())
        self._conducting = asyncio.ensure_future(self._conduct())
        try:
            await asyncio.wait([self._conducting])
            if not self._conducting.cancelled():
                self._conducting.result()
            deadline = time.monotonic() + _LEAVING_SECONDS
            while self._nodes and time.monotonic() < deadline:
                await self._news(0.1)
        finally:
            server.close()
            tasks = [alive, self._conducting, *self._meetings]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _say_alive(self) -> None:
        while True:
            await asyncio.sleep(messages.ALIVE_SECONDS)
            for node in self._nodes:
                node.say(messages.ALIVE)

    async def _news(self, seconds: float) -> None:
        """Waits until a node comes, says something or goes; no longer than so many seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return
        self._changed.clear()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes in a node, and hears it until it goes."""
        node = None
        meeting = asyncio.current_task()
        assert meeting is not None
        self._meetings.add(meeting)
        try:
            said = await self._strangers.greet((reader, writer))
            node = self._taken_in(said, (reader, writer))
            while node is not None:
                async with asyncio.timeout(messages.SILENT_SECONDS):
                    header, _ = await wire.read(reader)
                self._hear(node, header)
        except SecretError as error:
            self._say(
                f"`TFDP_SECRET` must be the same on all nodes, but a launcher from "
                f"{host_of_peer(writer)} {error}; it was sent away."
            )
        except (OSError, asyncio.CancelledError):  # it is gone, silent or no launcher; or all end
            pass
        finally:
            if node in self._nodes:
                self._nodes.remove(node)
            self._meetings.discard(meeting)
            writer.close()
            self._changed.set()

    def _taken_in(self, said: dict[str, Any], stream: Stream) -> _JoinedNode | None:
        name = wire.field(said, "name", str)
        host = host_of_peer(stream[1])
        reason = messages.difference(self._alike, said.get("options"), name)
        if reason is not None:
            stream[1].write(wire.frame({"type": messages.REFUSED, "reason": reason}))
            self._say(f"{reason} It was sent away.")
            return None
        if not ipaddress.ip_address(host).is_loopback:
            sockname = stream[1].get_extra_info("sockname")[0]
            self._own_hosts.add(sockname.removeprefix("::ffff:"))
        elif not is_loopback(self._host):  # it came by the loopback interface; others cannot
            host = self._host
        attempts = wire.field(said, "attempts", int)
        node = _JoinedNode(
            f"{name} ({host})", wire.field(said, "serves", bool), attempts, stream, host
        )
        self._nodes.append(node)
        self._changed.set()
        return node

    def _hear(self, node: _JoinedNode, said: dict[str, Any]) -> None:
        kind = said.get("type")
        if kind == messages.READY:
            ports = wire.field(said, "ports", list)
            node.ports, node.end = [int(port) for port in ports], None
        elif kind == messages.ENDED:
            node.end = NodeEnd(
                node.name,
                messages.How(wire.field(said, "how", str)),
                wire.field(said, "code", int),
                wire.field(said, "message", str),
                wire.field(said, "is_consequence", bool),
                serves=node.serves,
            )
        if kind != messages.ALIVE:
            self._changed.set()

    async def _conduct(self) -> None:
        """Conducts the attempts of the run, until one is the last."""
        while True:
            taking_part = await self._gathered()
            if not taking_part:
                return
            self._start(taking_part)
            ends, stopped_for_nodes = await self._until_ended(taking_part)
            decision = decide(ends, self._options, self._restarts, stopped_for_nodes)
            for node in list(self._nodes):
                if decision.goes_on:
                    node.say(messages.AGAIN, pause=decision.pause, message=decision.message)
                else:
                    node.say(messages.FINISHED, code=decision.code, message=decision.message)
            if not decision.goes_on:
                return

    async def _gathered(self) -> list[_JoinedNode]:
        """Waits for the nodes of an attempt; says it to all, and returns none, if too few came."""
        least, most = self._options.span_of_nodes
        deadline = time.monotonic() + self._seconds
        known, since = 0, time.monotonic()
        while True:
            ready = [node for node in self._nodes if node.ports is not None]
            if len(self._nodes) != known:
                known, since = len(self._nodes), time.monotonic()
            late = time.monotonic() >= deadline
            all_are_ready = len(ready) == len(self._nodes)
            called = time.monotonic() >= since + _LAST_CALL_SECONDS
            # The checkpoints are where rank 0 is: on the host of the rendezvous.
            served = any(node.serves for node in ready)
            complete = len(ready) >= most or (all_are_ready and called)
            if len(ready) >= least and (late or (served and complete)):
                return sorted(ready, key=lambda node: not node.serves)[:most]
            if late:
                names = ", ".join(node.name for node in ready) or "none"
                text = (
                    f"`nodes` must come within {self._seconds:g} s (`join-timeout`); received "
                    f"--nodes {self._options.span_of_nodes}, and there came: {names}; start the "
                    "same command on the others, and open the rendezvous' port to them."
                )
                for node in self._nodes:
                    node.say(messages.FINISHED, code=1, message=text)
                return []
            await self._news(0.2)

    def _start(self, nodes: Sequence[_JoinedNode]) -> None:
        number = max(node.attempts for node in nodes)
        places = [[join_address(node.host, port) for port in node.ports or []] for node in nodes]
        first = 0
        peers = {node.host for node in nodes if node.host != self._host} | self._own_hosts
        for node, own in zip(nodes, places, strict=True):
            node.say(
                messages.START,
                attempt=number,
                addresses=[address for group in places for address in group],
                first=first,
                peers=[] if is_loopback(self._host) else sorted(peers),
            )
            first += len(own)
            node.attempts, node.ports = number + 1, None

    async def _until_ended(self, nodes: Sequence[_JoinedNode]) -> tuple[list[NodeEnd], bool]:
        """Waits for the end of all ranks; returns each node's, and whether nodes were let in."""
        deadline: float | None = None
        since_left: float | None = None
        stopped_for_nodes = False
        ends: dict[_JoinedNode, NodeEnd] = {}  # in the order in which they were heard of
        while len(ends) < len(nodes):
            for node in nodes:
                if node in ends:
                    continue
                if node.end is not None:
                    ends[node] = node.end
                elif node not in self._nodes:
                    ends[node] = NodeEnd(node.name, messages.How.FAILED, 1, "", False, lost=True)
            ending = [end for end in ends.values() if end.how in _ENDS_THE_OTHERS]
            gone = [end for end in ends.values() if end.how is messages.How.LEFT]
            if gone and since_left is None:
                since_left = time.monotonic()
            if since_left is not None and time.monotonic() > since_left + _FOLLOWING_SECONDS:
                ending = ending or gone
            left = [node for node in nodes if node not in ends]
            if ending and deadline is None:
                deadline = time.monotonic() + _ENDING_SECONDS
                for node in left:
                    node.say(messages.END, reason=f"{ending[0].name}: {ending[0].cause}")
            if deadline is not None and time.monotonic() > deadline:
                for node in left:
                    node.stream[1].transport.abort()
            others = [node for node in self._nodes if node not in nodes and node.ports is not None]
            if others and not stopped_for_nodes and len(nodes) < self._options.span_of_nodes.most:
                stopped_for_nodes = True
                nodes[0].say(messages.STOP)
            if left:
                await self._news(0.5)
        return list(ends.values()), stopped_for_nodes


def serve(options: RunOptions, secret: str, say: Callable[[str], None]) -> Rendezvous | None:
    """Serves the rendezvous if its address is this host's, and no other launcher here does so."""
    assert options.rendezvous is not None
    host, port = host_of(options.rendezvous), port_of(options.rendezvous)
    if not _is_here(host):
        return None
    try:
        listener = bound(host, port)
    except OSError:  # the launcher of another node on this host listens, or another program
        return None
    return Rendezvous(options, secret, listener, say)


def _is_here(host: str) -> bool:
    """Returns whether a name or an address is this host's own."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # unknown here: it is another's
        return False
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.bind((address[0], 0))
                return True
        except OSError:
            continue
    return False
