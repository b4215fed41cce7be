"""What a rank asks the homes of weights, and all ranks; and its waits for ranks that are behind."""

import asyncio
import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdp.cluster.peers import Peers
from tfdp.communication.homes.home_service import HomeService
from tfdp.errors import CollectiveTimeoutError, RankLostError, RankMismatchError

# How often a wait looks whether its deadline is over, and how soon another home is asked.
_LOOK_SECONDS, _RETRY_SECONDS = 1.0, 0.02

# What ranks must do, by what they have compared; why, and how it is mended.
_ALIKE = {
    "pass": "read the data of `fit` in one order, for each takes parts of the same batches, but a "
    "pass over them begins with other values on one than on the other. Give `fit` arrays, or seed "
    "what draws an order or changes examples, such as `dataset.shuffle(1000, seed=1)`; random "
    "layers that change examples belong into the model.",
    "state": "begin with the same values of what no optimizer trains, such as layers that are not "
    "trainable and moving statistics, but these differ when `fit` begins. Load weights on all "
    "ranks, and give layers the same seeds.",
}


class HomeRequests:
    """The requests of a rank, in the loop of its `Peers`.

    Args:
      here: What this rank holds.
      peers: The other ranks.
      timeout_seconds: How long there may be no news while a rank waits for others, until it gives
        them up.
    """

    def __init__(self, here: HomeService, peers: Peers, timeout_seconds: float) -> None:
        self.rank, self._here, self._peers = here.rank, here, peers
        self._timeout_seconds = timeout_seconds
        self._met: collections.Counter[str] = collections.Counter()

    async def meet(self, what: str, payload: bytes = b"") -> dict[int, bytes]:
        """Waits for all ranks that are alive, and returns what each of them comes with."""
        self._met[what] += 1
        count, marks = self._met[what], self._here.marks[what]
        await self.tell_all({"do": "mark", "name": what, "count": count}, payload)
        await self.until(
            lambda: [rank for rank in self._peers.alive if marks.get(rank, 0) < count],
            what,
        )
        brought = self._here.brought.pop((what, count))
        return {rank: brought[rank] for rank in sorted(self._peers.alive & brought.keys())}

    async def at_homes(
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
        left = set(range(self._here.num_ranks))
        while left:
            self.check_own()
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

    async def tell_all(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Tells all ranks, this one too; one that is lost meanwhile need not hear it."""
        self.check_own()
        asked = [self._peers.ask(rank, header, payload) for rank in sorted(self._peers.alive)]
        _results(await asyncio.gather(*asked, return_exceptions=True))

    def check_own(self) -> None:
        """Raises an error if the others have given this rank up, or read other data than it."""
        if self._peers.failure is not None:
            raise self._peers.failure
        if self._here.unlike:
            what, one, other = self._here.unlike
            raise RankMismatchError(
                f"Rank {self.rank}: ranks {one} and {other} must {_ALIKE[what]}"
            )

    async def until(self, missing: Callable[[], list[int]], what: str) -> None:
        """Waits until no rank is missing; those are given up where there is no news for long."""
        last_news = time.monotonic()
        while missing():
            self.check_own()
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
