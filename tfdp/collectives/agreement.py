"""Processes compare the collectives of a traced function before any of them runs it.

Each process traces when it must: one may trace again while another runs an older graph. What must
hold is that every process of a group has traced the same sequence before it is run; so each says
which sequences it has, waits until all others have said the same once, and never asks again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools

from tfdp.cluster.board import Board, Post
from tfdp.collectives.sequence import Call, Sequences
from tfdp.errors import CollectiveMismatchError


class Agreement:
    """Which sequences of collectives all processes have.

    Args:
      board: Of this process.
      local_size: Replicas per process.
      prefix: Names the strategy, alike in all processes.
    """

    def __init__(self, board: Board, local_size: int, prefix: str) -> None:
        self._board = board
        self._local_size = local_size
        self._prefix = prefix
        self._posted: set[str] = set()
        self._agreed: set[str] = set()

    def key_of_group(self, group: tuple[int, ...]) -> int:
        """A number for a group of ranks, alike in all processes."""
        return self._board.number(f"{self._prefix} group {group}")

    def new_sequences(self) -> Sequences:
        """Records of one more traced function, whose keys are alike in all processes."""

        def key_of(call: Call, ordinal: int, keys: int) -> int:
            return self._board.number(f"{self._prefix} {call} number {ordinal}", keys)

        return Sequences(key_of)

    def reach(self, sequences: Sequences, function: str) -> None:
        """Waits until the other processes have traced the same.

        Args:
          sequences: What the local replicas issue.
          function: What was traced, for errors.

        Raises:
          CollectiveMismatchError: Another process has traced something else, and waits as well.
          CollectiveTimeoutError: Another process traces nothing.
        """
        waiting = []
        for group in sequences.groups():
            members = sorted({rank // self._local_size for rank in group})
            if members == [self._board.rank]:
                continue
            first = next(rank for rank in group if rank // self._local_size == self._board.rank)
            calls = [str(call) for call in sequences.issued(first, group)]
            digest = hashlib.sha256("\n".join(calls).encode()).hexdigest()
            key = f"{self._prefix} traced {group} {digest}"
            if key in self._agreed:
                continue
            if key not in self._posted:
                trial = {"key": key, "calls": calls, "function": function}
                self._board.post(self._trial(group), trial)
                self._board.post(key)
                self._posted.add(key)
            waiting.append((key, group, members, calls))
        for key, group, members, calls in waiting:
            self._board.wait(
                key,
                members,
                f"the trace of {function}",
                check=functools.partial(self._compare, group, calls, function),
                keep=True,
            )
            self._agreed.add(key)

    def _trial(self, group: tuple[int, ...]) -> str:
        return f"{self._prefix} traces {group}"

    def _compare(self, group: tuple[int, ...], calls: list[str], function: str) -> None:
        for rank, post in self._board.posted(self._trial(group)).items():
            if post.value["key"] not in self._posted:
                raise self._difference(rank, post, calls, function)

    def _difference(self, other: int, post: Post, calls: list[str], function: str) -> Exception:
        theirs: list[str] = post.value["calls"]
        pairs = enumerate(itertools.zip_longest(calls, theirs))
        position, (a, b) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        return CollectiveMismatchError(
            f"Rank {self._board.rank}: every rank must issue the same collectives in the same "
            f"order, but number {position + 1} is {a or 'missing'} in {function!r} of rank "
            f"{self._board.rank} and {b or 'missing'} in {post.value['function']!r} of rank "
            f"{other}. Take Python branches that depend on the rank out of the step, and give all "
            "ranks batches of the same shapes."
        )
