"""Processes compare the collectives of a traced function before any of them runs it.

Each process traces when it must: one may trace again while another runs an older graph. Every
process of a group must have traced the same sequence before the sequence is run. So each process
posts the sequences it has, waits once until all others have posted the same, and never asks again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools

from tfdp.cluster.board import Board, Post
from tfdp.engines.sequence import Call, Sequences
from tfdp.errors import CollectiveMismatchError


class Agreement:
    """The sequences of collectives that all processes have traced, and their keys.

    Args:
      board: The board of this process.
      local_size: The number of replicas per process.
      prefix: The name of the strategy, alike in all processes.
    """

    def __init__(self, board: Board, local_size: int, prefix: str) -> None:
        self._board = board
        self._local_size = local_size
        self._prefix = prefix
        self._posted: set[str] = set()
        self._agreed: set[str] = set()

    def key_of_group(self, group: tuple[int, ...]) -> int:
        """Returns the number of a group of ranks, alike in all processes."""
        return self._board.number(f"{self._prefix} group {group}")

    def new_sequences(self) -> Sequences:
        """Makes the records of one more traced function, with keys alike in all processes."""

        def key_of(call: Call, ordinal: int, keys: int) -> int:
            return self._board.number(f"{self._prefix} {call} number {ordinal}", keys)

        return Sequences(key_of)

    def reach(self, sequences: Sequences, function: str) -> None:
        """Waits until the other processes have traced the same.

        Args:
          sequences: The collectives that the local replicas issue.
          function: The name of the traced function, for errors.

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
