"""What a rank holds for all: homes of shards, and how far each rank is; and what it answers."""

import asyncio
import collections
import dataclasses
import time
from collections.abc import Collection
from typing import Any

import numpy as np

from tfdp.base.sharding import share_place
from tfdp.communication.homes.shard_home import Event, OuterUpdate, ShardHome


@dataclasses.dataclass
class WeightsHere:
    """What a rank knows of one vector of weights.

    Attributes:
      size: The number of weights.
      dtype: Their dtype.
      taken: What the rank last took; None: nothing yet.
      versions: The version of each shard then.
      number: The number of the rank's rounds then.
      homes: The homes that are here, by shard.
    """

    size: int
    dtype: np.dtype
    taken: np.ndarray | None
    versions: list[int]
    number: int = 0
    homes: dict[int, ShardHome] = dataclasses.field(default_factory=dict)

    def shard(self, number: int) -> slice:
        """Returns where a shard is in the vector."""
        _, count, first, _ = share_place(self.size, len(self.versions), number)
        return slice(first, first + count)


class HomeService:
    """The state that is all in the loop's thread, and the answers that need it.

    Attributes:
      rank: The rank of this process.
      num_ranks: The number of ranks, lost ones too.
      weights: The vectors of weights, by name.
      holders: Of each shard the rank that is its home.
      rounds: By the name of a vector how many rounds each rank has had that trains.
      marks: By the name of a meeting how often each rank has come to it.
      brought: By the name of a meeting, and which time it is, what each rank has come with.
      highest: By the name of a vector the most rounds that a rank has had.
      turns: By the name of data and the number of a pass the next turn that is given.
      passes: By the name of data the last pass over them that a rank has begun.
      unlike: "pass" where two ranks' passes over the same data begin with other parts, "state"
        where their models begin with other values; and these ranks. None: there are none.
      records: Whether homes that are made from now on record what happens.
      said: What rank 0 has said, or would say; JSON.

    Args:
      rank: The rank of this process.
      num_ranks: The number of ranks.
      update: What becomes of changes.
      first_seconds: How long the first weights may take to come.
      said: What rank 0 says to all ranks that come.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        update: OuterUpdate,
        first_seconds: float,
        said: dict[str, Any],
    ) -> None:
        self.said = said
        self._first_seconds = first_seconds
        self.rank, self.num_ranks, self.records = rank, num_ranks, False
        self.weights: dict[str, WeightsHere] = {}
        self.holders = list(range(num_ranks))
        self.rounds: dict[str, dict[int, int]] = collections.defaultdict(self.at_start)
        self.marks: dict[str, dict[int, int]] = collections.defaultdict(dict)
        self.brought: dict[tuple[str, int], dict[int, bytes]] = collections.defaultdict(dict)
        self.highest: dict[str, int] = collections.defaultdict(int)
        self.turns: dict[tuple[str, int], int] = {}
        self.passes: dict[str, int] = {}
        self.unlike: tuple[str, int, int] | None = None
        self._checksums: dict[tuple[str, str], dict[int, int]] = collections.defaultdict(dict)
        self._update = update
        self._waiting: set[asyncio.Future[None]] = set()

    def at_start(self, number: int = 0) -> dict[int, int]:
        """Returns the rounds of all ranks at the start of a training, where they are equal."""
        return dict.fromkeys(range(self.num_ranks), number)

    async def answer(
        self, rank: int, header: dict[str, Any], payload: bytes
    ) -> tuple[dict[str, Any], bytes]:
        """Answers what a rank asks; see `Peers`."""
        does, name = header["do"], header.get("name", "")
        if does in ("begin", "push", "take", "events"):
            shards = header["shards"]
            if any(self.holders[shard] != self.rank for shard in shards):
                return {"holders": self.holders}, b""
            if does != "begin":
                there = await self._until_there(name, shards)
                if not there:
                    return {"late": True}, b""
            if does == "events":
                events = self.weights[name].homes[shards[0]].events or []
                return {"events": events}, b""
            return self._of_shards(rank, header, payload)
        if does == "round":
            self.rounds[name][rank] = header["round"]
            self.highest[name] = max(self.highest[name], header["round"])
        elif does == "rest":
            self.rounds[name].pop(rank, None)
        elif does == "mark":
            self.marks[name][rank] = header["count"]
            self.brought[name, header["count"]][rank] = payload
        elif does == "taken":
            taken = self.weights[name].taken
            return {}, b"" if taken is None else taken.tobytes()
        elif does == "turn":
            key = (name, header["pass"])
            self.turns[key] = max(self.turns.get(key, 0), header["last"] + 1) + 1
            return {"turn": self.turns[key] - 1}, b""
        elif does == "pass":
            self.passes[name] = max(self.passes.get(name, 0), header["pass"])
            if header["first"] is not None:
                self._compare(does, f"{name} {header['pass']}", rank, header["first"])
        elif does == "state":
            self._compare(does, name, rank, header["checksum"])
        elif does == "join":
            return {
                "said": self.said,
                "begun": bool(self.weights),
                "highest": self.highest,
                "passes": self.passes,
                "holders": self.holders,
                "rounds": {name: list(found.items()) for name, found in self.rounds.items()},
                "marks": {name: list(found.items()) for name, found in self.marks.items()},
            }, b""
        self.has_news()
        return {}, b""

    def joined(self, told: dict[str, Any]) -> None:
        """Goes on from what another rank has answered to "join"."""
        self.holders = list(told["holders"])
        self.highest.update(told["highest"])
        self.passes.update(told["passes"])
        for name, found in told["rounds"].items():
            self.rounds[name] = dict(map(tuple, found))
        for name, found in told["marks"].items():
            self.marks[name] = dict(map(tuple, found))

    def make(self, name: str, size: int, dtype: np.dtype) -> WeightsHere:
        """Returns what is known of a vector, which another rank may have begun already."""
        if name not in self.weights:
            self.weights[name] = WeightsHere(size, dtype, None, [0] * self.num_ranks)
        return self.weights[name]

    def move(self, gone: Collection[int]) -> None:
        """Forgets ranks that are gone, and gives each of their shards to the next rank."""
        for found in (*self.rounds.values(), *self.marks.values()):
            for rank in gone:
                found.pop(rank, None)
        for shard, holder in enumerate(self.holders):
            while holder in gone:
                holder = (holder + 1) % self.num_ranks
            moved = holder != self.holders[shard]
            self.holders[shard] = holder
            if moved and holder == self.rank:
                for known in self.weights.values():
                    self._adopt(known, shard)
        self.has_news()

    def has_news(self) -> None:
        """Lets those look again who wait."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def news(self, seconds: float) -> bool:
        """Waits for news; returns whether there are some before the time is over."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        done, _ = await asyncio.wait({future}, timeout=seconds)
        self._waiting.discard(future)
        return bool(done)

    def _compare(self, what: str, name: str, rank: int, checksum: int) -> None:
        found = self._checksums[what, name]
        found[rank] = checksum
        others = (each for each in found if found[each] != checksum)
        self.unlike = self.unlike or next(((what, each, rank) for each in others), None)

    async def _until_there(self, name: str, shards: list[int]) -> bool:
        """Waits for the first weights of shards; returns whether they have come in time."""
        deadline = time.monotonic() + self._first_seconds
        while not (name in self.weights and self.weights[name].homes.keys() >= {*shards}):
            if time.monotonic() > deadline:
                return False
            await self.news(1.0)
        return True

    def _of_shards(
        self, rank: int, header: dict[str, Any], payload: bytes
    ) -> tuple[dict[str, Any], bytes]:
        does, shards = header["do"], header["shards"]
        known = self.make(header["name"], header["size"], np.dtype(header["dtype"]))
        given, place = np.frombuffer(payload, known.dtype), 0
        parts, versions = [], []
        for shard, taken in zip(shards, header["versions"], strict=True):
            if does == "take":
                home = known.homes[shard]
                parts.append(home.take(rank, header["round"]).tobytes())
                versions.append(home.version)
                continue
            span = known.shard(shard)
            part = given[place : place + span.stop - span.start]
            place += len(part)
            if does == "push":
                known.homes[shard].push(part, rank, header["round"], taken)
            elif shard not in known.homes:  # else a rank that came again has its own beginning
                known.homes[shard] = ShardHome(part, self._update, [] if self.records else None)
        self.has_news()
        return {"versions": versions}, b"".join(parts)

    def _adopt(self, known: WeightsHere, shard: int) -> None:
        if known.taken is None:
            return
        events = [Event("adopted", self.rank, known.number)] if self.records else None
        home = ShardHome(known.taken[known.shard(shard)], self._update, events)
        home.version = known.versions[shard]
        known.homes[shard] = home
