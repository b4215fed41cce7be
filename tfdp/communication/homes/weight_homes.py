"""Weights whose home is with the ranks: each has a shard, and all push and take.

A rank has trained for a round by itself, and exchanges what has changed:

1. It pushes its change of each shard to the shard's home, which adds it at once.
2. If it is more than `staleness` rounds ahead of the slowest rank, it waits.
3. It takes the current shards, and goes on from them.

No rank waits for another but in 2. All ranks hear of each round, so 2 needs no message.

Where a rank is lost, the next one that is alive is the home of its shards. It goes on with what it
last took itself: what others have pushed there since then is lost, at most 2 staleness + 2 changes
of each of them. A rank that comes again takes the current weights, and the home of its shard stays
where it is.
"""

import collections
import contextlib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tfdp.cluster.peers import Peers
from tfdp.cluster.spec import host_of, is_loopback, join_address
from tfdp.communication.homes.home_requests import HomeRequests
from tfdp.communication.homes.home_service import HomeService
from tfdp.communication.homes.shard_home import Event, OuterUpdate
from tfdp.errors import RankLostError

# Returns in words how ranks differ that must not, given what each has said of itself.
Differ: TypeAlias = Callable[[list[dict[str, Any]]], str | None]


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
        self._staleness, self._again = staleness, there is not None
        # Sooner than the rank that asks would give its home up for them.
        first_seconds = timeout_seconds / 2
        self._here = HomeService(rank, self.num_ranks, update, first_seconds, said or {})
        self._described, self._differ = described or {}, differ
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
        self._requests = HomeRequests(self._here, self._peers, timeout_seconds)
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

    def end(self, weights: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
        """Pushes what last rounds have changed, waits until all ranks have, and takes.

        All ranks that are alive return the same: None of what no rank has ever changed.

        Args:
          weights: By name the weights with which rounds have ended; None: they are not this rank's.
        """
        return self._peers.run(self._end(weights))

    def turn(self, name: str, number: int, last: int, first: int | None = None) -> int:
        """Returns a number that no other rank is given, larger than `last`, from 0 on.

        Where the rank is lost that gives them, some come twice.

        Args:
          name: The data that the numbers belong to.
          number: The number of the pass over them.
          last: The last number that this rank was given in it; -1: none.
          first: A checksum of what the pass begins with, if that is to be compared; it is not for
            a rank that comes again, which may have passed over its data less often.

        Raises:
          RankLostError: The others have given this rank up.
          RankMismatchError: Passes of ranks begin with other values.
        """
        return self._peers.run(self._turn(name, number, last, None if self._again else first))

    def compare_state(self, name: str, checksum: int) -> None:
        """Tells all ranks what weights that are not trained begin with, and does not wait.

        Where ranks differ, all later calls raise RankMismatchError.

        Args:
          name: The training.
          checksum: A checksum of the weights.
        """
        told = {"do": "state", "name": name, "checksum": checksum}
        if not self._again:
            self._peers.run(self._requests.tell_all(told))

    def check(self) -> None:
        """Raises what other calls would, such as RankLostError, if this rank may not go on."""
        self._requests.check_own()

    def drop_out(self, reason: str) -> None:
        """Leaves as a lost rank: the others go on, and nothing on this one does."""

        async def drop_out() -> None:
            self._peers.drop_out(reason)

        self._peers.run(drop_out())

    @property
    def passes(self) -> Mapping[str, int]:
        """By the name of data the last pass over them that a rank has begun."""
        return self._here.passes

    def rounds(self, name: str) -> int:
        """Returns the number of rounds that this rank has had, or begins with."""
        return self._here.rounds[name].get(self.rank, 0)

    def mean(self, what: str, values: np.ndarray) -> np.ndarray:
        """Returns the mean of what all ranks that are alive call it with; all must.

        Values that are equal on all ranks stay as they are, to the last bit.
        """
        told = self._peers.run(self._requests.meet(what, values.tobytes()))
        every = np.stack([np.frombuffer(each, values.dtype) for each in told.values()])
        return np.where(np.all(every == every[0], 0), every[0], np.mean(every, 0))

    def wait_for_all(self, what: str) -> None:
        """Waits until all ranks that are alive have come to as many calls on `what`."""
        self._peers.run(self._requests.meet(what))

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
        await self._requests.at_homes(name, {"do": "begin"}, weights) if self.rank == 0 else None
        number = min((rounds[rank] for rank in self._peers.alive & rounds.keys()), default=0)
        await self._requests.tell_all({"do": "round", "name": name, "round": number})
        return (await self._take(name, number)).copy()

    async def _exchange(self, name: str, weights: np.ndarray) -> np.ndarray:
        number = await self._push(name, weights)
        await self._requests.until(lambda: self._behind(name, number), f"a round of {name}")
        return (await self._take(name, number)).copy()

    async def _end(self, weights: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
        numbers = {
            name: self.rounds(name) if each is None else await self._push(name, each)
            for name, each in weights.items()
        }
        # Nobody waits for a round of a rank that waits here, with whichever optimizer.
        rounds = self._here.rounds.items()
        rests = {name: found[self.rank] for name, found in rounds if self.rank in found}
        for name in rests:
            await self._requests.tell_all({"do": "rest", "name": name})
        await self._requests.meet("the end of a training")
        taken = {}
        for name, number in numbers.items():
            taken[name] = await self._take(name, number)
            self._here.rounds[name] = self._here.at_start(self._here.highest[name])
        sums = zlib.crc32(b"".join(each.tobytes() for each in taken.values())).to_bytes(4, "big")
        # Else one whose program ends would take its shard along.
        told = await self._requests.meet("the weights at the end of a training", sums)
        if any(other != sums for other in told.values()):  # a home was lost meanwhile
            for name in weights:
                taken[name] = self._here.weights[name].taken = await self._taken_by_first(name)
            await self._requests.meet("the weights of the first rank")
        for name in rests.keys() - weights.keys():
            await self._requests.tell_all({"do": "round", "name": name, "round": rests[name]})
        changed = {name: any(self._here.weights[name].versions) for name in weights}
        return {name: each.copy() if changed[name] else None for name, each in taken.items()}

    async def _taken_by_first(self, name: str) -> np.ndarray:
        """Returns what the first rank that is alive has taken last."""
        while True:
            with contextlib.suppress(RankLostError):
                _, data = await self._peers.ask(
                    min(self._peers.alive), {"do": "taken", "name": name}
                )
                return np.frombuffer(data, self._here.weights[name].dtype).copy()
            self._requests.check_own()

    async def _push(self, name: str, weights: np.ndarray) -> int:
        known, rounds = self._here.weights[name], self._here.rounds[name]
        assert known.taken is not None
        number = rounds.get(self.rank, 0) + 1
        await self._requests.at_homes(name, {"do": "push", "round": number}, weights - known.taken)
        await self._requests.tell_all({"do": "round", "name": name, "round": number})
        return number

    async def _take(self, name: str, number: int) -> np.ndarray:
        known = self._here.weights[name]
        taken = np.empty(known.size, known.dtype)
        await self._requests.at_homes(name, {"do": "take", "round": number}, into=taken)
        known.taken, known.number = taken, number
        return taken

    async def _turn(self, name: str, number: int, last: int, first: int | None) -> int:
        of_pass = {"name": name, "pass": number}
        if last < 0:
            await self._requests.tell_all({"do": "pass", "first": first} | of_pass)
        while True:
            self._requests.check_own()
            try:
                gives = min(self._peers.alive)
                told, _ = await self._peers.ask(gives, {"do": "turn", "last": last} | of_pass)
                return int(told["turn"])
            except RankLostError:
                continue

    async def _events(self, name: str) -> list[list[Event]]:
        found = []
        for shard, holder in enumerate(self._here.holders):
            asked = {"do": "events", "name": name, "shards": [shard]}
            told, _ = await self._peers.ask(holder, asked)
            found.append([Event(*event) for event in told["events"]])
        return found

    def _behind(self, name: str, number: int) -> list[int]:
        """Returns the ranks that are so far behind that this one waits for them."""
        rounds = self._here.rounds[name]
        training = self._peers.alive & rounds.keys()
        return [rank for rank in training if number - rounds[rank] > self._staleness]
