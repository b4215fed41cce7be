"""Backup workers: in each step the gradients of the ranks that come first count."""

import dataclasses
from typing import Any, ClassVar

from tfdp.synchronization.weight_averaging import Synchronization, check_count


@dataclasses.dataclass(frozen=True)
class BackupWorkers(Synchronization):
    """Sums the gradients of the ranks that come first, and drops those of the last `backups`.

    In each update of n ranks:

    1. A rank that has its gradients tells rank 0. Once n - backups have, rank 0 closes the sum, and
       tells all ranks whose gradients it has.
    2. These ranks sum their gradients, in the order of ranks. The sum is scaled to the mean over
       their examples, and all ranks update by it. So all have the same weights, bit for bit.
    3. A rank that comes late drops its gradients, and takes the sum. Where it hears before a step
       that the sum was closed without it, it does not compute the step: so it catches up.

    A rank is a process, with one replica: what is late is a process or its host, with all that it
    computes. An update is that of one device which is given the global batch without the examples
    of the ranks that came late: see `DataParallelStrategy.counted_ranks`.

    The sum is scaled by the number of all examples over that of the examples that count, which
    makes the mean over all that over these. A loss that divides by a number of its own is scaled
    alike.

    Losses and metrics at the end of an epoch are those of all examples that were computed, also of
    such whose gradients were dropped. Within an epoch `fit` shows each rank its own.

    Source: Chen, Pan, Monga, Bengio, Jozefowicz: Revisiting Distributed Synchronous SGD, arXiv
    1604.00981 (2016), algorithms 3 and 4, whose N is n - backups and b is `backups`. There the
    gradients of backup workers that are not needed are dropped, too; the ranks are more than N from
    the beginning.

    Cost: (n - backups) / n of the examples that are read count, so the gradient has more noise. The
    bytes of a sum between n - backups ranks, all in one piece after the backward pass, and its size
    again for each late rank. Memory: sums are kept for a rank until it comes, at most 256 MiB, from
    which on the others wait. What a model sums in its own passes, such as statistics of
    BatchNormalization, would have all ranks wait, and is refused. Rank 0's process decides: if it
    stands still, all ranks wait.

    Args:
      backups: The number b of ranks whose gradients an update does without, at least 1 and below
        the number of ranks.

    Raises:
      ValueError: `backups` is no whole number of at least 1.

    >>> BackupWorkers(1)
    BackupWorkers(backups=1)
    """

    replicas_differ: ClassVar[bool] = False
    replicas_wait: ClassVar[bool] = False
    no_compression: ClassVar[str] = (
        "`BackupWorkers` drops gradients of ranks that come late, and a compression would keep "
        "back parts of them. Leave one of them out."
    )
    no_shard: ClassVar[str] = (
        "Under `BackupWorkers` no rank waits for the others, and `shard` needs the parts of all."
    )

    backups: int

    def __post_init__(self) -> None:
        check_count("BackupWorkers", "backups", self.backups, 1, "BackupWorkers(1)", of="ranks")

    def num_counted(self, num_ranks: int) -> int:
        """Returns n - backups; see `Synchronization.num_counted`.

        >>> BackupWorkers(1).num_counted(4)
        3
        """
        return num_ranks - self.backups

    def describe(self) -> dict[str, Any]:
        """Describes the synchronization; see `Synchronization.describe`.

        >>> BackupWorkers(2).describe()
        {'name': 'BackupWorkers', 'backups': 2}
        """
        return {"name": type(self).__name__, "backups": self.backups}
