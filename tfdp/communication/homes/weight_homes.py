"""Weights whose home is with the ranks: each has a shard, and all push and take.

A rank has trained for a round by itself, and exchanges what has changed:

1. It pushes its change of each shard to the shard's home, which adds it at once.
2. If it is more than `staleness` rounds ahead of the slowest rank, it waits.
3. It takes the current shards, and goes on from them.

No rank waits for another but in 2. All ranks hear of each round, so 2 needs no message.

Where a rank is lost, the next one that is alive is the home of its shards. It goes on with what it
last took itself: what others have pushed there since then is lost, at most staleness + 2 changes of
each of them. A rank that comes again takes the current weights, and the home of its shard stays
where it is.
"""

import asyncio
import collections
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tfdp.cluster.peers import Peers
from tfdp.cluster.spec import host_of, is_loopback, join_address
from tfdp.communication.homes.home_service import HomeService
from tfdp.communication.homes.shard_home import Event, OuterUpdate
from tfdp.errors import CollectiveTimeoutError, RankLostError

# Returns in words how ranks differ that must not, given what each has said of itself.
Differ: TypeAlias = Callable[[list[dict[str, Any]]], str | None]

# How often a wait looks whether its deadline is over, and how soon another home is asked.
_LOOK_SECONDS, _RETRY_SECONDS = 1.0, 0.02


def _never(told: list[dict[str, Any]]) -> str | None:
    return None


class WeightHomes:
    """This rank's part in the homes of weights, and its way to those of the others.

    All ranks must call `begin`, `end` and `wait_for_all` as often, in the same order.

    Attributes:
      rank: The rank of this process.
      num_ranks: The number of ranks, lost ones too.

    Args:
      rank: The rank of this process.
      addresses: Where each rank listens, "host:port".
      update: What becomes of changes.
      staleness: The number of rounds that a rank may be ahead of the slowest.
      timeout_seconds: How long there may be no news while a rank waits for others, until it gives
        them up.
      startup_seconds: How long all ranks may take to be there.
      secret: What all ranks know and nobody else, or None.
      there: The ranks that are there, if this one comes again; None: all ranks come.
      said: What all ranks get to know from rank 0, also those that come again; JSON.
      described: What this rank has said of itself when the ranks met.
      differ: Returns why a rank that comes again, and has said such things, must not; or None.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        update: OuterUpdate,
        staleness: int,
        timeout_seconds: float = 600.0,
        startup_seconds: float = 300.0,
        secret: str | None = None,
        there: Collection[int] | None = None,
        said: dict[str, Any] | None = None,
        described: dict[str, Any] | None = None,
        differ: Differ = _never,
    ) -> None:
        self.rank, self.num_ranks = rank, len(addresses)
        self._staleness, self._timeout_seconds = staleness, timeout_seconds
        # Sooner than the rank that asks would give its home up for them.
        first_seconds = timeout_seconds / 2
        self._here = HomeService(rank, self.num_ranks, update, first_seconds, said or {})
        self._described, self._differ = described or {}, differ
        self._met: collections.Counter[str] = collections.Counter()
        self._peers = Peers(
            rank,
            addresses,
            self._here.answer,
            self._changed,
            secret,
            startup_seconds,
            timeout_seconds,
            self._welcome,
        )
        try:
            self._peers.start(there)
            self._peers.run(self._join())
        except BaseException:
            self._peers.close()
            raise

    # ---- for the threads that train and read

    def begin(self, name: str, weights: np.ndarray) -> np.ndarray:
        """Returns the weights to begin with: rank 0's, or what has become of them already.

        Args:
          name: What is exchanged, the same on all ranks.
          weights: This rank's own, one axis.
        """
        return self._peers.run(self._begin(name, weights))

    def exchange(self, name: str, weights: np.ndarray) -> np.ndarray:
        """Pushes what a round has changed, and returns the current weights.

        Args:
          name: What is exchanged.
          weights: The weights with which the round has ended, one axis.

        Raises:
          RankLostError: The others have given this rank up.
        """
        return self._peers.run(self._exchange(name, weights))

    def end(self, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Pushes what last rounds have changed, waits until all ranks have, and takes.

        All ranks that are alive return the same.

        Args:
          weights: By name the weights with which rounds have ended.
        """
        return self._peers.run(self._end(weights))

    def turn(self, name: str, number: int, last: int) -> int:
        """Returns a number that no other rank is given, larger than `last`, from 0 on.

        Where the rank is lost that gives them, some come twice.

        Args:
          name: The data that the numbers belong to.
          number: The number of the pass over them.
          last: The last number that this rank was given in it; -1: none.
        """
        return self._peers.run(self._turn(name, number, last))

    @property
    def passes(self) -> Mapping[str, int]:
        """By the name of data the last pass over them that a rank has begun."""
        return self._here.passes

    def rounds(self, name: str) -> int:
        """Returns the number of rounds that this rank has had, or begins with."""
        return self._here.rounds[name].get(self.rank, 0)

    def wait_for_all(self, what: str) -> None:
        """Waits until all ranks that are alive have come to as many calls on `what`."""
        self._peers.run(self._meet(what))

    def record(self) -> None:
        """Lets homes that are made from now on, on this rank, record what happens, for a replay."""
        self._here.records = True

    def events(self, name: str) -> list[list[Event]]:
        """Returns for each shard what has happened at its home, where that is recorded."""
        return self._peers.run(self._events(name))

    def staleness(self, name: str) -> dict[int, int]:
        """Returns how often a change that came to this rank's homes was so many versions late."""
        homes = self._here.weights[name].homes.values()
        return dict(sorted(sum((home.staleness for home in homes), collections.Counter()).items()))

    @property
    def said(self) -> dict[str, Any]:
        """What rank 0 has said to all."""
        return self._here.said

    def alive(self) -> list[int]:
        """Returns the ranks that take part now."""
        return sorted(self._peers.alive)

    def close(self) -> None:
        """Leaves; the others go on."""
        self._peers.close()

    # ---- in the loop

    def _changed(self, rank: int) -> None:
        self._here.move(self._peers.gone)

    async def _join(self) -> None:
        """Hears what rank 0 has said, and where homes are if the others have begun."""
        first = min(self._peers.alive - {self.rank}, default=None)
        if first is None:
            return
        told, _ = await self._peers.ask(first, {"do": "join"})
        if told["begun"]:
            self._here.joined(told)
            self._here.move(self._peers.gone)
        if told["begun"] or first < self.rank:
            self._here.said = told["said"]

    def _welcome(self, came: dict[str, Any], host: str) -> dict[str, Any]:
        """Answers a process that comes as to a rendezvous, when all have met."""
        rank, address = came.get("rank"), came.get("address")
        addresses = list(self._peers.addresses)
        if type(rank) is not int or not 0 <= rank < self.num_ranks or type(address) is not str:
            return {"all": [], "reason": "The other ranks have met, and it is none of them."}
        if address.startswith(":"):
            near = is_loopback(host)
            address = join_address(host_of(addresses[0]) if near else host, int(address[1:]))
        addresses[rank] = address
        told = [self._described | {"address": each} for each in addresses]
        told[rank] = came | {"address": address}
        reason = self._differ(told)
        told[0]["there"] = sorted(self._peers.alive - {rank})
        return {"all": told, "reason": reason}

    async def _begin(self, name: str, weights: np.ndarray) -> np.ndarray:
        here, rounds = self._here, self._here.rounds[name]
        here.make(name, len(weights), weights.dtype)
        await self._at_homes(name, {"do": "begin"}, weights) if self.rank == 0 else None
        number = min((rounds[rank] for rank in self._peers.alive & rounds.keys()), default=0)
        await self._tell_all({"do": "round", "name": name, "round": number})
        return (await self._take(name, number)).copy()

    async def _exchange(self, name: str, weights: np.ndarray) -> np.ndarray:
        number = await self._push(name, weights)
        await self._until(lambda: self._behind(name, number), f"a round of {name}")
        return (await self._take(name, number)).copy()

    async def _end(self, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        numbers = {name: await self._push(name, each) for name, each in weights.items()}
        for name in weights:  # nobody waits for a round of a rank that trains no more
            await self._tell_all({"do": "rest", "name": name})
        while True:
            lost = dict(self._peers.lost)
            await self._meet("the end of a training")
            taken = {name: await self._take(name, number) for name, number in numbers.items()}
            for name in weights:
                self._here.rounds[name] = self._here.at_start(self._here.highest[name])
            # Else one whose program ends would take its shard along.
            await self._meet("the weights at the end of a training")
            if lost == self._peers.lost:
                return {name: each.copy() for name, each in taken.items()}

    async def _push(self, name: str, weights: np.ndarray) -> int:
        known, rounds = self._here.weights[name], self._here.rounds[name]
        assert known.taken is not None
        number = rounds.get(self.rank, 0) + 1
        await self._at_homes(name, {"do": "push", "round": number}, weights - known.taken)
        await self._tell_all({"do": "round", "name": name, "round": number})
        return number

    async def _take(self, name: str, number: int) -> np.ndarray:
        known = self._here.weights[name]
        taken = np.empty(known.size, known.dtype)
        await self._at_homes(name, {"do": "take", "round": number}, into=taken)
        known.taken, known.number = taken, number
        return taken

    async def _turn(self, name: str, number: int, last: int) -> int:
        of_pass = {"name": name, "pass": number}
        if last < 0:
            await self._tell_all({"do": "pass"} | of_pass)
        while True:
            try:
                gives = min(self._peers.alive)
                told, _ = await self._peers.ask(gives, {"do": "turn", "last": last} | of_pass)
                return int(told["turn"])
            except RankLostError:
                self._check_own()

    async def _events(self, name: str) -> list[list[Event]]:
        found = []
        for shard, holder in enumerate(self._here.holders):
            asked = {"do": "events", "name": name, "shards": [shard]}
            told, _ = await self._peers.ask(holder, asked)
            found.append([Event(*event) for event in told["events"]])
        return found

    async def _meet(self, what: str) -> None:
        self._met[what] += 1
        count, marks = self._met[what], self._here.marks[what]
        await self._tell_all({"do": "mark", "name": what, "count": count})
        await self._until(
            lambda: [rank for rank in self._peers.alive if marks.get(rank, 0) < count], what
        )

    # ---- the ways to the others

    async def _at_homes(
        self,
        name: str,
        header: dict[str, Any],
        sent: np.ndarray | None = None,
        into: np.ndarray | None = None,
    ) -> None:
        """Asks the homes of all shards, each for its own; where one is lost, the next.

        Args:
          name: What is exchanged.
          header: What they are asked.
          sent: What is sent, of which each home is given its shards; None: nothing.
          into: Where what they answer is put; None: they answer nothing.
        """
        left = set(range(self.num_ranks))
        while left:
            self._check_own()
            of_holder: dict[int, list[int]] = {}
            for shard in sorted(left):
                of_holder.setdefault(self._here.holders[shard], []).append(shard)
            asked = [
                self._at_home(holder, shards, name, header, sent, into)
                for holder, shards in of_holder.items()
            ]
            before = len(left)
            for done in _results(await asyncio.gather(*asked, return_exceptions=True)):
                left.difference_update(done)
            if len(left) == before:
                await asyncio.sleep(_RETRY_SECONDS)  # until all know where homes are now

    async def _at_home(
        self,
        holder: int,
        shards: list[int],
        name: str,
        header: dict[str, Any],
        sent: np.ndarray | None,
        into: np.ndarray | None,
    ) -> list[int]:
        """Asks one home, and returns the shards for which it has answered."""
        known = self._here.weights[name]
        spans = [known.shard(shard) for shard in shards]
        told, data = await self._peers.ask(
            holder,
            header
            | {"name": name, "size": known.size, "dtype": known.dtype.name, "shards": shards}
            | {"versions": [known.versions[shard] for shard in shards]},
            b"" if sent is None else b"".join(sent[span].tobytes() for span in spans),
        )
        if "late" in told:
            raise CollectiveTimeoutError(
                f"Rank {self.rank}: rank 0 must bring the first weights of {name} within "
                f"{self._timeout_seconds / 2:g} s, but did not. Look at its output; "
                "`timeout_seconds` allows more time."
            )
        if "holders" in told:
            self._here.holders[:] = told["holders"]
            self._here.move(self._peers.gone)
            return []
        if into is not None:
            found, place = np.frombuffer(data, known.dtype), 0
            for shard, span, version in zip(shards, spans, told["versions"], strict=True):
                count = span.stop - span.start
                into[span] = found[place : place + count]
                place, known.versions[shard] = place + count, version
        return shards

    async def _tell_all(self, header: dict[str, Any]) -> None:
        """Tells all ranks, this one too; one that is lost meanwhile need not hear it."""
        self._check_own()
        asked = [self._peers.ask(rank, header) for rank in sorted(self._peers.alive)]
        _results(await asyncio.gather(*asked, return_exceptions=True))

    def _check_own(self) -> None:
        if self._peers.failure is not None:
            raise self._peers.failure

    def _behind(self, name: str, number: int) -> list[int]:
        """Returns the ranks that are so far behind that this one waits for them."""
        rounds = self._here.rounds[name]
        training = self._peers.alive & rounds.keys()
        return [rank for rank in training if number - rounds[rank] > self._staleness]

    async def _until(self, missing: Callable[[], list[int]], what: str) -> None:
        """Waits until no rank is missing; those are given up where there is no news for long."""
        last_news = time.monotonic()
        while missing():
            self._check_own()
            if await self._here.news(_LOOK_SECONDS):
                last_news = time.monotonic()
            elif time.monotonic() - last_news > self._timeout_seconds:
                for rank in missing():
                    self._peers.lose(
                        rank,
                        f"{what} did not come from it within {self._timeout_seconds:g} s; "
                        "`timeout_seconds` allows more",
                    )


def _results(found: Sequence[Any]) -> list[Any]:
    """Returns what was answered, without what lost ranks have not; raises other errors."""
    answered = []
    for each in found:
        if isinstance(each, RankLostError):
            continue
        if isinstance(each, BaseException):
            raise each
        answered.append(each)
    return answered
