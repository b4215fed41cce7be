"""The home of a shard of the weights: it adds what ranks have changed, in the order of arrival."""

import collections
import dataclasses
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class OuterUpdate:
    """What becomes of a change: SGD with Nesterov's momentum, of which 0 is none.

    The change of one of n ranks counts 1/n: where each of them has changed the same weights once,
    and the rate is 1, the sum of the changes is their mean, as `LocalSGD` takes it.

    Attributes:
      num_ranks: The number n of ranks.
      learning_rate: The rate.
      momentum: The momentum.

    >>> weights, velocity = np.float32([1.0]), np.float32([0.0])
    >>> OuterUpdate(num_ranks=2).apply(weights, velocity, np.float32([0.5]))
    >>> weights
    array([1.25], dtype=float32)
    """

    num_ranks: int
    learning_rate: float = 1.0
    momentum: float = 0.0

    def apply(self, weights: np.ndarray, velocity: np.ndarray, change: np.ndarray) -> None:
        """Updates weights and velocity in place, as Keras' SGD does by the gradient -change / n."""
        step = change * np.asarray(self.learning_rate / self.num_ranks, change.dtype)
        if self.momentum:
            velocity *= np.asarray(self.momentum, velocity.dtype)
            velocity += step
            step += velocity * np.asarray(self.momentum, velocity.dtype)
        weights += step


class Event(NamedTuple):
    """What has happened at the home of a shard, for a replay.

    Attributes:
      kind: "push", "take", or "adopted": the home goes on with what its rank last took.
      rank: The rank that has pushed or taken, or whose copy is meant.
      round: The number of its rounds then.
    """

    kind: str
    rank: int
    round: int


class ShardHome:
    """A shard of the weights, which no rank waits for another to reach.

    Attributes:
      weights: The shard, one axis.
      velocity: The momentum's state.
      version: The number of changes that it has had.
      staleness: How often a change was so many versions behind, by that number.
      events: What has happened, in order; None: it is not recorded.

    Args:
      weights: The first weights.
      update: What becomes of changes.
      events: Where to record what happens.
    """

    def __init__(
        self, weights: np.ndarray, update: OuterUpdate, events: list[Event] | None = None
    ) -> None:
        self.weights = weights.copy()
        self.velocity = np.zeros_like(weights) if update.momentum else weights[:0].copy()
        self.version = 0
        self.staleness: collections.Counter[int] = collections.Counter()
        self.events = events
        self._update = update

    def push(self, change: np.ndarray, rank: int, number: int, taken: int) -> None:
        """Adds a change.

        Args:
          change: The change, like the weights.
          rank: Whose it is.
          number: The number of its rounds.
          taken: The version of the shard that it is a change of.
        """
        self._update.apply(self.weights, self.velocity, change)
        self.staleness[max(0, self.version - taken)] += 1
        self.version += 1
        self._record("push", rank, number)

    def take(self, rank: int, number: int) -> np.ndarray:
        """Returns the current weights, for a rank that has had so many rounds."""
        self._record("take", rank, number)
        return self.weights

    def _record(self, kind: str, rank: int, number: int) -> None:
        if self.events is not None:
            self.events.append(Event(kind, rank, number))
