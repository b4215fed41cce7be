"""Messages that all processes exchange on a board: see `ProcessGroup`."""

import json
from collections.abc import Mapping

from tfdp.base import rank_comparison
from tfdp.cluster.control_channel import ControlChannel, Post
from tfdp.communication.collectives import random_states


class Meetings:
    """The part of a `ProcessGroup` in which processes meet, on the board that they share.

    Attributes:
      rank: The rank of this process.
      world_size: The number of processes.
      board: The board of this process.
    """

    rank: int
    world_size: int
    board: ControlChannel

    @property
    def cluster_rank(self) -> int:
        """The number of this process among all of the cluster, which are the group."""
        return self.rank

    @property
    def cluster_size(self) -> int:
        """Number of processes in the cluster, which are the group."""
        return self.world_size

    @property
    def said_by(self) -> str:
        """The beginning of errors that must name the rank."""
        return f"Rank {self.rank}: "

    def barrier(self, subject: str) -> None:
        """Waits until all ranks have come to the same call on `subject`."""
        self.board.barrier(subject)

    def from_first(self, subject: str, value: object = None, payload: bytes = b"") -> Post:
        """Returns rank 0's post on `subject`; all ranks must call it, and rank 0 does not wait."""
        return self.board.from_first(subject, value, payload)

    def all_gather(self, subject: str, value: object = None, payload: bytes = b"") -> list[Post]:
        """Returns every rank's post on `subject`, in the order of ranks."""
        return self.board.all_gather(subject, value, payload)

    def post(self, key: str, value: object) -> None:
        """Tells all ranks a value (JSON) under a key, without waiting."""
        self.board.post(key, value)

    def posted(self, key: str) -> dict[int, Post]:
        """Returns what ranks told under a key so far, by rank."""
        return self.board.posted(key)

    def wait_for_posts(self, key: str) -> dict[int, Post]:
        """Waits until all ranks have told a value under a key, and returns them by rank."""
        return self.board.wait(key, range(self.world_size), key, keep=True)

    def bring_to_first(self, key: str, payload: bytes) -> list[bytes]:
        """Returns on rank 0 all ranks' payloads."""
        return bring_to_first(self.board, key, payload)

    def compare(
        self, subject: str, options: Mapping[str, object], fix: str = rank_comparison.FOR_SCRIPTS
    ) -> None:
        """Compares all ranks' `options` (JSON): see `ProcessGroup`."""
        options = json.loads(json.dumps(options))  # as the others get it
        told = [post.value for post in self.board.all_gather(subject, options)]
        rank_comparison.check(self.said_by, subject, told, fix)

    def staleness(self) -> Mapping[int, int]:
        """Returns {}: no update waits for another, or all come together."""
        return {}

    def fail(self, error: Exception) -> None:
        """Tells all ranks of `error`, with which they end."""
        self.board.fail(error)

    def failure(self, within_seconds: float) -> Exception | None:
        """Returns the error of another process, as soon as it is told: see `ProcessGroup`."""
        return self.board.wait_for_failure(within_seconds)

    def adopt_random_states(self) -> None:
        """Adopts rank 0's random states of Python and NumPy; all ranks must call it."""
        random_states.adopt_states(self.board)


def bring_to_first(board: ControlChannel, key: str, payload: bytes) -> list[bytes]:
    """Returns on rank 0 all ranks' payloads, in the order of ranks; elsewhere nothing.

    Rank 0 asks for them, and the others wait for that: what it has not asked for is not in its
    memory. All ranks must call it, in whatever thread.

    Args:
      board: The board of this process.
      key: What is sent, the same on all ranks; no two calls under way may have the same.
      payload: What this rank sends.

    Raises:
      RankLostError: A rank is lost.
      CollectiveTimeoutError: A rank does not come to this call in time.
    """
    asked = f"{key}?"
    if board.rank == 0:
        board.post(asked)
    board.wait(asked, [0], f"rank 0's word to send {key}")
    board.post_on_first(key, payload)
    if board.rank != 0:
        return []
    posts = board.wait(key, range(board.world_size), key)
    return [post.payload for post in posts.values()]
