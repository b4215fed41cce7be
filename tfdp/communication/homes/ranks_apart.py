"""The group of a process that trains apart from the others of its cluster, and never waits in it.

To all that asks it, the process is alone: no step, no trace and no message waits for another rank.
What the ranks have in common are the homes of weights, and the batches that they take in turn.
"""

import atexit
import collections
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base import rank_comparison
from tfdp.cluster import rank_status, secret
from tfdp.cluster.peers import those_that_run
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.spec import Cluster
from tfdp.communication.collectives import global_seed, introductions, random_states
from tfdp.communication.homes.shard_home import OuterUpdate
from tfdp.communication.homes.weight_homes import WeightHomes
from tfdp.communication.replicas.one_process import OneProcess
from tfdp.errors import ClusterError, RankMismatchError


class HomeTurns:
    """The parts of training batches that this rank takes: in each pass the next that is free.

    Attributes:
      parts: The number of parts of each batch.

    Args:
      homes: The way to the rank that gives turns.
      failed: Called with an error of a turn, before TensorFlow raises its own in its place.
    """

    def __init__(self, homes: WeightHomes, failed: Callable[[Exception], None]) -> None:
        self.parts = homes.num_ranks
        self._homes, self._failed = homes, failed
        self._datasets = self._first = 0
        self._trains = False

    @property
    def seed(self) -> int:
        """A seed for the order of the next dataset, the same on all ranks."""
        seed: int = self._homes.said["seed"]
        return (seed + self._datasets) % 2**31

    def begin(self) -> int | None:
        """Begins a training; returns the pass over its data that other ranks are in; None: over."""
        self._homes.check()
        self._trains = False
        passes, name = self._homes.passes, f"data {self._datasets}"
        later = [int(each.split()[1]) for each in passes]
        self._first = passes.get(name, 0)
        return None if max(later, default=0) > self._datasets else self._first

    def fail(self, error: BaseException) -> None:
        """Drops out of the cluster if a training has begun: the others must not wait for it."""
        if self._trains and self.parts > 1:
            self._homes.drop_out(f"its `fit` ended with {type(error).__name__}: {error}")

    def compare_state(self, checksum: int) -> None:
        """Tells the others what a model begins the current training with beside its weights."""
        self._homes.compare_state(f"data {self._datasets - 1}", checksum)

    def dataset(self) -> Callable[[int, int, int | None], int]:
        """Returns what gives turns of the data of a training; see `Turns`."""
        name, first = f"data {self._datasets}", self._first
        self._datasets += 1
        self._first, self._trains = 0, True

        def turn(number: int, last: int, begins: int | None) -> int:
            try:
                return self._homes.turn(name, first + number, last, begins)
            except Exception as error:
                self._failed(error)
                raise

        return turn


class RanksApart(OneProcess):
    """A process of a cluster, as a group of its own.

    Attributes:
      homes: The homes of weights, and this rank's way to them.

    Args:
      cluster: The cluster.
      local_size: The number of devices in each process.
      options: What all ranks must have alike, by name; JSON.
      update: What becomes of a rank's changes.
      staleness: The number of rounds that a rank may be ahead of the slowest.
      timeout_seconds: How long there may be no news while ranks wait for each other.
      startup_seconds: How long all ranks may take to start.

    Raises:
      ClusterError: The ranks do not come together, or differ.
    """

    def __init__(
        self,
        cluster: Cluster,
        local_size: int,
        options: Mapping[str, object],
        update: OuterUpdate,
        staleness: int,
        timeout_seconds: float,
        startup_seconds: float,
    ) -> None:
        super().__init__(local_size)
        self._cluster = cluster
        self._failed: Exception | None = None
        self._vectors = 0
        told: list[dict[str, Any]] = [{"address": ""}]
        own = introductions.own(local_size) | {"options": dict(options)}
        if cluster.world_size > 1:
            told = _introduced(cluster, own, startup_seconds)
        self.homes = WeightHomes(
            cluster.rank,
            [each["address"] for each in told],
            update,
            staleness,
            timeout_seconds,
            startup_seconds,
            secret.in_environment(),
            told[0].get("there"),
            random_states.states() | {"seed": _known_seed()},
            own,
            _difference,
        )
        random_states.set_states(self.homes.said)
        tf.random.set_seed(self.homes.said["seed"])
        self._turns = HomeTurns(self.homes, self._note)
        rank_status.tell(apart=cluster.world_size > 1)
        rank_status.tell_alive()  # no other rank would notice its silence
        atexit.register(self.homes.close)

    @property
    def cluster_rank(self) -> int:
        """The number of this process in the cluster."""
        return self._cluster.rank

    @property
    def cluster_size(self) -> int:
        """Number of processes in the cluster, lost ones too."""
        return self._cluster.world_size

    @property
    def turns(self) -> HomeTurns:
        """The parts of training batches that this rank takes."""
        return self._turns

    def vector(self) -> str:
        """Returns the name of the next vector of weights that is exchanged, alike on all ranks."""
        self._vectors += 1
        return f"weights {self._vectors - 1}"

    def staleness(self) -> Mapping[int, int]:
        """Returns how often a change that came to this rank's homes was so many changes late."""
        counts = (self.homes.staleness(f"weights {number}") for number in range(self._vectors))
        return sum(map(collections.Counter, counts), collections.Counter())

    def exchange(self, name: str, weights: np.ndarray) -> np.ndarray:
        """Exchanges weights from within a graph, whose error `explained` then explains."""
        try:
            return self.homes.exchange(name, weights)
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: Exception) -> None:
        self._failed = error

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raises the error of an exchange in place of TensorFlow's own."""
        try:
            with super().explained():
                yield
        except tf.errors.OpError as error:
            failed, self._failed = self._failed, None
            if failed is None:
                raise
            raise failed from error


def _introduced(
    cluster: Cluster, own: dict[str, Any], startup_seconds: float
) -> list[dict[str, Any]]:
    """Returns what each rank has said of itself; the first of them who is there, if ranks run.

    Raises:
      ClusterError: The ranks do not come together, or differ.
    """
    shared = secret.in_environment()
    found = those_that_run(cluster, own, shared)
    if found is None:
        meeting = meet(cluster, own, _difference, startup_seconds, shared)
        meeting.connections.close()
        return meeting.introductions
    if found["reason"] is not None:
        raise ClusterError(f"Rank {cluster.rank}: {found['reason']}")
    told: list[dict[str, Any]] = found["all"]
    return told


def _known_seed() -> int:
    seed = global_seed()
    return random.SystemRandom().randrange(2**31) if seed is None else seed


def _difference(told: list[dict[str, Any]]) -> str | None:
    different = introductions.difference(told)
    if different is not None:
        return different
    try:
        options = [each["options"] for each in told]
        rank_comparison.check("", "the options of a strategy", options, rank_comparison.FOR_SCRIPTS)
    except RankMismatchError as error:
        return str(error)
    return None
