"""What a topology is: the schedule of phases by which a group of ranks sums a buffer."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """One phase: every group sums its ranks' buffers, all groups at the same time.

    Attributes:
      groups: Disjoint tuples of ranks. A rank that is in none sits the phase out.

    >>> AllReduce(groups=((0, 1), (2, 3))).group_of(2)
    (2, 3)
    """

    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = [rank for group in self.groups for rank in group]
        if len(set(ranks)) != len(ranks):
            raise ValueError(
                "The groups of a phase must be disjoint, but a rank is in two of "
                f"groups={self.groups}. Put overlapping groups into phases of their own."
            )

    def group_of(self, rank: int) -> tuple[int, ...] | None:
        """The group that `rank` takes part in, or None."""
        return next((group for group in self.groups if rank in group), None)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Phases, run one after the other by every rank.

    Attributes:
      phases: The phases in their order. After the last, every rank holds the sum over all ranks.
    """

    phases: tuple[AllReduce, ...]


class Topology(abc.ABC):
    """A rule for summing a buffer over ranks. Subclasses are frozen dataclasses.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class PairsFirst(Topology):
    ...     def schedule(self, world_size, hosts, size_bytes):
    ...         pairs = tuple((r, r + 1) for r in range(0, world_size, 2))
    ...         across = tuple(tuple(range(k, world_size, 2)) for k in (0, 1))
    ...         return Schedule((AllReduce(pairs), AllReduce(across)))
    >>> len(PairsFirst().schedule(4, [0, 0, 0, 0], 1024).phases)
    2
    """

    @abc.abstractmethod
    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """The schedule for one buffer.

        Args:
          world_size: Number of ranks, at least 1.
          hosts: For each rank the index of the host that it runs on.
          size_bytes: Size of the buffer, the same on every rank.

        Returns:
          Phases after which each rank holds the same bits of the sum over all ranks.
        """
