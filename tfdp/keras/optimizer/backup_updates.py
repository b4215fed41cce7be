"""Updates by the gradients of the ranks that come first."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdp.base import recording, words
from tfdp.communication.replicas import Value
from tfdp.keras._keras import BaseOptimizer
from tfdp.keras.optimizer.per_replica_updates import PerReplicaUpdates, call, dense
from tfdp.keras.optimizer.update_protocol import accumulates
from tfdp.keras.replica_step import ReplicaStep


class BackupUpdates(PerReplicaUpdates):
    """The optimizer updates by the sum of the gradients of some ranks, scaled to their examples."""

    @contextlib.contextmanager
    def building(self, optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
        """Checks the optimizer.

        Raises:
          ValueError: It accumulates gradients.
        """
        if accumulates(optimizer):
            raise ValueError(
                "Under `BackupWorkers` each batch is an update, since other ranks may be late in "
                f"each, but {optimizer.name!r} received gradient_accumulation_steps="
                f"{optimizer.gradient_accumulation_steps}. Leave it out, or use larger batches."
            )
        yield

    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager[list[Value | None]]:
        """Sums gradients of the ranks that come first."""
        pairs = zip(gradients, variables, strict=False)
        given = [dense(*pair) for pair in pairs]
        return contextlib.nullcontext(call(given, _summed, takes_rows=True))

    def all_finite(
        self,
        gradients: list[Value | None],
        whole: Callable[[list[Value | None]], Any],
    ) -> Any:
        """Asks it of the sums, which all ranks have."""
        return whole(gradients)

    def tell(self, strategy: Any) -> None:
        """Says on rank 0 how many examples did not count since the last time."""
        sums = strategy.extended.replicas.sums_not_told()
        rows = sum(each.all_rows for each in sums)
        dropped = rows - sum(each.rows for each in sums)
        if not dropped or strategy.rank != 0:
            return
        late = {
            rank: count
            for rank in range(strategy.world_size)
            if (count := sum(rank not in each.members for each in sums))
        }
        logging.getLogger("tfdp").warning(
            "%d of %d examples (%s) did not count in %d updates, as their ranks came late: %s.",
            *(dropped, rows, words.percent(dropped / rows), len(sums)),
            ", ".join(f"rank {rank} {count} times" for rank, count in late.items()),
        )


def _summed(step: ReplicaStep, values: list[Value], are_own: list[bool]) -> list[Value]:
    own = [index for index, is_own in enumerate(are_own) if is_own]
    if not own or step.num_replicas == 1:
        return values
    *values, rows, all_rows = values
    with recording.watching_buckets():
        found = step.replicas.sum_of_first([values[index] for index in own], rows, all_rows)
    for index, total in zip(own, found, strict=True):
        values[index] = total
    return values
