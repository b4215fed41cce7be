"""Processes compare the collectives of a traced function before any of them runs it.

Each process traces when it must: one may trace again while another runs an older graph. Every
process of a group must have traced the same sequence before the sequence is run. So each process
posts the sequences it has, waits once until all others have posted the same, and never asks again.
"""

import collections
import functools
import hashlib
from collections.abc import Callable, Sequence

from tfdp.base import threads
from tfdp.base.rank_comparison import first_difference
from tfdp.cluster.control_channel import ControlChannel, Post
from tfdp.cluster.watchdog import TRACE_OF
from tfdp.communication.engines.sequence import CollectiveCall, Sequences
from tfdp.errors import CollectiveMismatchError


class CollectiveAgreement:
    """The sequences of collectives that all processes have traced, and their keys.

    Args:
      board: The board of this process.
      local_size: The number of replicas per process.
      prefix: The name of the strategy, alike in all processes.
    """

    def __init__(self, board: ControlChannel, local_size: int, prefix: str) -> None:
        self._board = board
        self._local_size = local_size
        self._prefix = prefix
        self._posted: set[str] = set()
        self._agreed: set[str] = set()
        # By trial: all its members are refused together, and post under other keys thereafter.
        self._refusals: collections.Counter[str] = collections.Counter()

    def new_sequences(self) -> Sequences:
        """Makes the records of one more traced function, with keys alike in all processes."""

        def key_of(call: CollectiveCall, ordinal: int, keys: int) -> int:
            name = f"{self._prefix} {call} number {ordinal}"
            if call.is_varying:
                return self._board.number(name, series=0)
            return self._board.number(name, keys)

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
        posts: dict[str, object] = {}
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
            trial = f"{self._prefix} traces {group}"
            posts |= self._posts(trial, key, {"calls": calls, "function": function})
            differ = functools.partial(self._collectives_differ, calls, function)
            waiting.append((trial, key, members, differ))
        self._board.post_together(posts)
        for trial, key, members, differ in waiting:
            self._wait(trial, key, members, function, differ)

    def reach_program(
        self, operations: Sequence[str], function: str, described: Callable[[int], str]
    ) -> None:
        """Waits until the other processes have traced a program of the same operations.

        Args:
          operations: A text for each, alike in all processes.
          function: The name of the traced function, for errors.
          described: Returns what to say of this process' operation of a number.

        Raises:
          CollectiveMismatchError: Another process has traced another program, and waits as well.
          CollectiveTimeoutError: Another process traces nothing.
        """
        digest = hashlib.sha256("\n".join(operations).encode()).hexdigest()
        key = f"{self._prefix} traced a program {digest}"
        if key in self._agreed:
            return
        trial = f"{self._prefix} traces a program"
        posts = self._posts(trial, key, {"operations": list(operations), "function": function})
        self._board.post_together(posts)
        differ = functools.partial(self._programs_differ, operations, function, described)
        self._wait(trial, key, range(self._board.world_size), function, differ)

    def _posts(self, trial: str, key: str, value: dict[str, object]) -> dict[str, object]:
        """Returns what tells the others, once for as many refusals, what this process has traced.

        They go together: a rank that reads the first may end with an error before the second.
        """
        threads.note()
        trial, key = self._after_refusals(trial, key)
        if key in self._posted:
            return {}
        self._posted.add(key)
        return {trial: {"key": key, **value}, key: None}

    def _wait(
        self,
        trial: str,
        key: str,
        members: Sequence[int],
        function: str,
        differ: Callable[[int, Post], Exception],
    ) -> None:
        """Waits until the members have posted the key; raises if one has traced something else."""
        tried, posted = self._after_refusals(trial, key)

        def compare() -> None:
            for rank, post in self._board.posted(tried).items():
                if post.value["key"] not in self._posted:
                    self._refusals[trial] += 1
                    raise differ(rank, post)

        self._board.wait(posted, members, f"{TRACE_OF}{function}", check=compare, keep=True)
        self._agreed.add(key)

    def _after_refusals(self, *keys: str) -> list[str]:
        """Returns the keys, of which the first is a trial's, for the attempt that is being made."""
        return [f"{key}, attempt {self._refusals[keys[0]]}" for key in keys]

    def _programs_differ(
        self,
        operations: Sequence[str],
        function: str,
        described: Callable[[int], str],
        other: int,
        post: Post,
    ) -> Exception:
        position, (a, b) = first_difference(operations, post.value["operations"])
        theirs = b.partition("#")[0] if b else "missing"
        if a and b and theirs == a.partition("#")[0]:
            theirs = "another one, of other inputs or attributes,"
        return CollectiveMismatchError(
            f"Rank {self._board.rank}: every rank must trace the same program, but operation "
            f"number {position + 1} is {described(position) if a else 'missing'} in {function!r} "
            f"of rank {self._board.rank} and {theirs} in {post.value['function']!r} of rank "
            f"{other}. Take what depends on the rank out of the function: Python branches, and "
            "numbers that Python computes. Give all ranks arguments of the same shapes."
            f"{threads.hint()}"
        )

    def _collectives_differ(
        self, calls: list[str], function: str, other: int, post: Post
    ) -> Exception:
        position, (a, b) = first_difference(calls, post.value["calls"])
        return CollectiveMismatchError(
            f"Rank {self._board.rank}: every rank must issue the same collectives in the same "
            f"order, but number {position + 1} is {a or 'missing'} in {function!r} of rank "
            f"{self._board.rank} and {b or 'missing'} in {post.value['function']!r} of rank "
            f"{other}. Take Python branches that depend on the rank out of the step, and give all "
            f"ranks batches of the same shapes.{threads.hint()}"
        )
