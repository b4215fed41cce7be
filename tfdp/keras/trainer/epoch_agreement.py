"""The comparison of all ranks after each epoch of `fit`: whether they stop, and at which rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tfdp.base import threads
from tfdp.base.words import ranks_in_words
from tfdp.communication.replicas import processes_of
from tfdp.errors import RankMismatchError
from tfdp.keras.trainer import rate_agreement

_SUBJECT = "the end of an epoch of `fit`"


class EpochsCompared(keras.callbacks.Callback):
    """A callback that finds where another one, which not all ranks have, parts them.

    A rank that stops by itself would leave `fit`, save and end, and the others would wait for it.
    It must come after the callbacks that may stop `fit`. Each rank sends a message for an epoch.
    """

    async_safe = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares; all processes must call it.

        Raises:
          RankMismatchError: Some ranks stop, or have other learning rates.
        """
        processes = processes_of(self.model.distribute_strategy)
        if processes.world_size == 1:
            return
        rates = [int(bits) for bits in rate_agreement.bits(self.model)]
        own = {"stop": bool(self.model.stop_training), "rates": rates}
        told = [post.value for post in processes.all_gather(_SUBJECT, own)]
        stops = [each["stop"] for each in told]
        if len(set(stops)) > 1:
            raise _stop_alone(processes.rank, stops, epoch)
        named = zip(
            rate_agreement.names(self.model), *(each["rates"] for each in told), strict=True
        )
        for name, *by_rank in named:
            if len(set(by_rank)) > 1:
                raise rate_agreement.differ(processes.rank, name, by_rank)


def _stop_alone(rank: int, stops: Sequence[bool], epoch: int) -> RankMismatchError:
    stop, go_on = (
        ranks_in_words([rank for rank, each in enumerate(stops) if each is value])
        for value in (True, False)
    )
    return RankMismatchError(
        f"Rank {rank}: `stop_training` must be alike on all ranks, but after epoch {epoch + 1} it "
        f"is False on {go_on} and True on {stop}: {stop} would leave `fit` alone, and {go_on} "
        "would wait in the next epoch. Give the callback that sets it, EarlyStopping for example, "
        "to all ranks, and let it decide by what is the same on all, as logs are."
        f"{threads.hint()}"
    )
