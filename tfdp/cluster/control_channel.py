"""The boards on which the processes of a cluster write to each other outside of TensorFlow.

Each process has a board, and what one process posts appears on all boards. Rank 0 passes messages
on. This star suits small things (names, shapes, decisions, signs of life) and initial values, which
are sent once.

Every wait has a deadline, ends at once when a rank is lost, and names the ranks that are missing.
"""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tfdp import errors
from tfdp.base import threads
from tfdp.base.words import ranks_in_words
from tfdp.cluster import wire
from tfdp.cluster.connections import Connections
from tfdp.cluster.rank_status import tell
from tfdp.errors import CollectiveTimeoutError, RankLostError

# Numbers of collectives begin above all that TensorFlow and single-process strategies count.
_FIRST_NUMBER = 1 << 28
_NUMBER_OF = "the number of "  # the key of a number; the text that it belongs to follows

# The time that a rank which ends waits for the others to read its goodbye.
_GOODBYE_SECONDS = 2.0

_KINDS = {name: cls for name, cls in vars(errors).items() if name.endswith("Error")}


@dataclasses.dataclass(frozen=True)
class Post:
    """The value and the bytes that a rank posted under a key.

    Attributes:
      value: A value that JSON can hold.
      payload: The raw bytes.
    """

    value: Any = None
    payload: bytes = b""


class ControlChannel:
    """One process' board.

    Attributes:
      waits_for: What the process' threads are waiting for at the moment.

    Args:
      rank: The rank of this process.
      world_size: The number of processes.
      connections: On rank 0 the connections to all others; elsewhere the connection to rank 0.
      timeout_seconds: How long a wait may take.
    """

    def __init__(
        self, rank: int, world_size: int, connections: Connections, timeout_seconds: float
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self._posts: dict[str, dict[int, Post]] = {}
        self._numbers: dict[str, int] = {}
        self._next_number: dict[int, int] = {}  # of each series, by the series' first
        self._rounds: dict[str, int] = {}
        self._signs: dict[int, tuple[float, Any]] = {}
        self._ended: dict[int, str | None] = {}
        self._failure: Exception | None = None
        self.waits_for: list[str] = []
        self._listeners: list[Callable[[Exception], None]] = []
        self._closed = False
        self._connections = connections
        self._writers = {rank: writer for rank, (_, writer) in connections.streams.items()}
        self._listening = [
            connections.start(self._listen(rank, reader))
            for rank, (reader, _) in connections.streams.items()
        ]

    # ---- posting and waiting

    def post(self, key: str, value: Any = None, payload: bytes = b"") -> None:
        """Posts `value` (JSON) and `payload` under `key` on all boards, in this rank's name."""
        self.post_together({key: value}, payload)

    def post_together(self, values: Mapping[str, Any], payload: bytes = b"") -> None:
        """Posts the values under their keys: all of them or, after a failure, none."""
        if values:
            self._raise_failure()
        for key, value in values.items():
            self._keep(self.rank, key, Post(value, payload))
            self._send({"type": "post", "from": self.rank, "key": key, "value": value}, payload)

    def post_on_first(self, key: str, payload: bytes) -> None:
        """Posts `payload` under `key` on rank 0's board alone."""
        self._raise_failure()
        if self.rank == 0:
            self._keep(0, key, Post(None, payload))
        else:
            self._send({"type": "for rank 0", "from": self.rank, "key": key}, payload)

    def posted(self, key: str) -> dict[int, Post]:
        """Returns what has been posted under `key` so far, by rank."""
        with self._changed:
            return dict(self._posts.get(key, {}))

    def wait(
        self,
        key: str,
        ranks: Iterable[int],
        what: str,
        check: Callable[[], None] | None = None,
        keep: bool = False,
    ) -> dict[int, Post]:
        """Waits until all of `ranks` have posted under `key`.

        Args:
          key: The same on all ranks.
          ranks: The ranks whose posts are waited for.
          what: What is being waited for, for the error: "the initial value of 'kernel'".
          check: Called on every change; raises where further waiting is vain.
          keep: Whether the posts stay on the board. Otherwise they are taken off the board.

        Raises:
          RankLostError: A rank is gone, or has ended without posting.
          CollectiveTimeoutError: The `timeout_seconds` are over; the error names the missing ranks.
        """
        wanted = set(ranks)
        deadline = time.monotonic() + self.timeout_seconds
        with self._changed, self._waiting(what):
            while not wanted <= self._posts.get(key, {}).keys():
                if check is not None:
                    check()  # first: the other rank may have ended for the same reason
                self._raise_failure()
                missing = sorted(wanted - self._posts.get(key, {}).keys())
                self._raise_if_ended(missing, what)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise CollectiveTimeoutError(
                        f"Rank {self.rank}: {what} must come from every rank within "
                        f"{self.timeout_seconds:g} s, but {ranks_in_words(missing)} did not send "
                        f"it. {self.describe(missing)} Let all ranks run the same script; "
                        f"`timeout_seconds` allows more time.{threads.hint()}"
                    )
                self._changed.wait(min(remaining, 1.0))
            posts = self._posts[key] if keep else self._posts.pop(key)
            return {rank: posts[rank] for rank in sorted(wanted)}

    def all_gather(self, subject: str, value: Any = None, payload: bytes = b"") -> list[Post]:
        """Returns every rank's post on `subject`, in the order of ranks. All ranks must call it.

        The n-th call on a subject meets the n-th call of the others. The call sends
        world_size * (world_size - 1) messages through rank 0.
        """
        threads.note()
        key = self._round(subject)
        self.post(key, value, payload)
        posts = self.wait(key, range(self.world_size), subject)
        return [posts[rank] for rank in range(self.world_size)]

    def barrier(self, subject: str) -> None:
        """Waits until all ranks have come to the same call on `subject`."""
        self.all_gather(subject)

    def from_first(self, subject: str, value: Any = None, payload: bytes = b"") -> Post:
        """Returns rank 0's post on `subject`. All ranks must call it; rank 0 does not wait."""
        threads.note()
        key = self._round(subject)
        if self.rank == 0:
            self._raise_failure()
            self._send({"type": "post", "from": 0, "key": key, "value": value}, payload)
            return Post(value, payload)
        return self.wait(key, [0], subject)[0]

    def number(self, text: str, count: int = 1, series: int = _FIRST_NUMBER) -> int:
        """Returns the number of `text`, the same on all ranks, and no other text's.

        Args:
          text: The name that all ranks have for what is numbered.
          count: How many consecutive numbers belong to it; the first is returned.
          series: The first number of the series that it gets a number of.
        """
        if self.rank == 0:
            return self._numbered(text, count, series)
        key = _NUMBER_OF + text
        if not self.posted(key):
            self._send(
                {"type": "number?", "from": self.rank, "key": text, "value": [count, series]}
            )
        value: int = self.wait(key, [0], "a number for a collective", keep=True)[0].value
        return value

    # ---- signs of life, and the end

    def sign(self, value: Any) -> None:
        """Sends a sign of life; `value` says where this rank is."""
        self._send({"type": "sign", "from": self.rank, "value": value})

    def signs(self) -> dict[int, tuple[float, Any]]:
        """Returns by rank the seconds since the last sign of each other rank, and its value."""
        now = time.monotonic()
        with self._changed:
            return {rank: (now - at, value) for rank, (at, value) in self._signs.items()}

    def ended(self) -> dict[int, str | None]:
        """Returns the ranks whose script has ended, each with the error it ended with, or None."""
        with self._changed:
            return dict(self._ended)

    def describe(self, ranks: Iterable[int]) -> str:
        """Describes in sentences where `ranks` were last seen."""
        ended, signs, sentences = self.ended(), self.signs(), []
        for rank in ranks:
            if rank in ended:
                how = f" with {ended[rank]}" if ended[rank] else ""
                sentences.append(f"Rank {rank} has ended{how}.")
            elif rank in signs:
                age, value = signs[rank]
                sentences.append(f"Rank {rank} was {value['text']}, {age:.0f} s ago.")
            elif rank != self.rank:
                sentences.append(f"Rank {rank} gave no sign since the start.")
        return " ".join(sentences)

    def end_of(self, rank: int, what: str) -> str:
        """Describes for `lose` where a rank ended that had yet to send `what`."""
        where = f" ({self._signs[rank][1]['text']})" if rank in self._signs else ""
        return f"it has ended{where}, and {what} was still to come from it"

    def on_failure(self, listener: Callable[[Exception], None]) -> None:
        """Calls `listener`, usually in another thread, with the first error of the cluster."""
        with self._changed:
            self._listeners.append(listener)
            failure = self._failure
        if failure is not None:
            listener(failure)

    @property
    def failure(self) -> Exception | None:
        """The first error of the cluster, or None."""
        with self._changed:
            return self._failure

    def wait_for_failure(self, seconds: float) -> Exception | None:
        """Returns the first error of the cluster, as soon as there is one; None after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, seconds)
            return self._failure

    def fail(self, error: Exception) -> None:
        """Ends the work of all ranks with `error`, whose text the others receive."""
        kind = type(error).__name__
        self._send({"type": "fail", "from": self.rank, "value": str(error), "kind": kind})
        self._failed(error)

    def lose(self, rank: int, reason: str) -> None:
        """Gives `rank` up: all waits end with a `RankLostError`."""
        self._send({"type": "lost", "from": self.rank, "key": str(rank), "value": reason})
        self._failed(self._lost(rank, reason))

    def close(self, error: str | None = None, timeout_seconds: float = 5.0) -> None:
        """Says goodbye to the other ranks; `error` is what the script ended with."""
        if self._closed:
            return
        self._closed = True
        self._send({"type": "bye", "from": self.rank, "value": error})
        with contextlib.suppress(Exception):
            self._connections.start(self._drain()).result(timeout_seconds)

    # ---- inside

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        self.waits_for.append(what)
        try:
            yield
        finally:
            self.waits_for.remove(what)

    def _round(self, subject: str) -> str:
        with self._changed:
            ordinal = self._rounds.get(subject, 0)
            self._rounds[subject] = ordinal + 1
        return f"{subject}#{ordinal}"

    def _keep(self, rank: int, key: str, post: Post) -> None:
        with self._changed:
            self._posts.setdefault(key, {})[rank] = post
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _raise_if_ended(self, ranks: Iterable[int], what: str) -> None:
        for rank in sorted({*ranks, 0} & self._ended.keys()):  # rank 0 passes messages on
            tell(lost_rank=rank)
            raise self._lost(rank, self.end_of(rank, what))

    def _lost(self, rank: int, reason: str) -> RankLostError:
        error = RankLostError(
            f"Rank {self.rank}: lost rank {rank}: {reason.rstrip('.')}. Training cannot go "
            "on without it: look at the output of that rank, and start all ranks again."
        )
        error.rank = rank
        return error

    def _failed(self, error: Exception) -> None:
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error
            listeners = list(self._listeners)
            if isinstance(error, RankLostError):
                tell(lost_rank=error.rank)  # before one who waits ends by it
            self._changed.notify_all()
        for listener in listeners:
            listener(error)

    def _numbered(self, text: str, count: int, series: int) -> int:
        with self._changed:
            if text not in self._numbers:
                self._numbers[text] = self._next_number.get(series, series)
                self._next_number[series] = self._numbers[text] + count
                key, value = _NUMBER_OF + text, self._numbers[text]
                self._send({"type": "post", "from": 0, "key": key, "value": value})
            return self._numbers[text]

    def _send(self, header: dict[str, Any], payload: bytes = b"", but: int | None = None) -> None:
        data = wire.frame(header, payload)

        def write() -> None:
            for rank, writer in self._writers.items():
                if rank != but and not writer.is_closing():
                    writer.write(data)

        self._connections.loop.call_soon_threadsafe(write)

    async def _drain(self) -> None:
        """Ends the connections once the others have read the goodbye, lest their writes break."""
        writers, self._writers = list(self._writers.values()), {}  # nothing follows a goodbye
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.drain()
                writer.write_eof()
        if self._listening:
            ends = [asyncio.wrap_future(future) for future in self._listening]
            await asyncio.wait(ends, timeout=_GOODBYE_SECONDS)
        for writer in writers:
            writer.close()

    async def _listen(self, rank: int, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                header, payload = await wire.read(reader)
                kind, sender = wire.field(header, "type", str), wire.field(header, "from", int)
                if self.rank == 0 and sender != rank:
                    raise wire.NoMessageError
                if self.rank == 0 and kind not in ("number?", "for rank 0"):
                    self._send(header, payload, but=rank)
                self._received(kind, sender, header, payload)
                if kind == "bye" and sender == rank:
                    self._connections.streams[rank][1].close()
                    return
        except Exception as error:  # whatever the error: without this all would wait in vain
            if rank not in self._ended and not self._closed:
                await asyncio.sleep(0)
                reason = f"its connection broke ({error})"
                if self.rank == 0:
                    self.lose(rank, reason)
                else:
                    self._failed(self._lost(rank, reason))

    def _received(self, kind: str, sender: int, header: dict[str, Any], payload: bytes) -> None:
        value = header.get("value")
        if kind in ("post", "for rank 0"):
            self._keep(sender, header["key"], Post(value, payload))
        elif kind == "number?":
            self._numbered(header["key"], *map(int, header["value"]))
        elif kind == "sign":
            with self._changed:
                self._signs[sender] = (time.monotonic(), value)
        elif kind == "bye":
            with self._changed:
                self._ended[sender] = value
                self._changed.notify_all()
            if value is not None:
                self._failed(self._lost(sender, f"its script ended with {value}"))
        elif kind == "lost":
            self._failed(self._lost(int(header["key"]), str(value)))
        elif kind == "fail":
            self._failed(_KINDS.get(header["kind"], RuntimeError)(value))
