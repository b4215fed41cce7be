"""The rounds of a `synchronization` in `fit`: each epoch ends the one that is open."""

import logging
from typing import Any

import keras

from tfdp.compression.exchange import exchange_of
from tfdp.keras.nested_optimizers import optimizers_of
from tfdp.keras.optimizer import local_sgd_rounds


def callbacks_for(model: Any, given: list[Any]) -> list[keras.callbacks.Callback]:
    """Returns the callback that ends rounds with the epochs of a `fit`; none without rounds.

    It must come before the others, so that they see one set of weights.

    Args:
      model: The model to be trained, under a strategy of tfdp.
      given: The callbacks that `fit` is given.

    Raises:
      ValueError: One of them moves each replica's own averages into its weights.
    """
    if exchange_of(model.distribute_strategy).synchronization is None:
        return []
    if any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in given):
        raise ValueError(
            "Under a `synchronization` each replica has moving averages of its own, which no "
            "callback may swap in, but `fit` received SwapEMAWeights. Leave it out: with "
            "`use_ema` the weights with which `fit` ends are the mean of the averages."
        )
    return [_Rounds()]


def end_epoch(model: Any) -> None:
    """Ends the rounds that are open; all processes must call it."""
    strategy = model.distribute_strategy
    if exchange_of(strategy).synchronization is not None:
        local_sgd_rounds.end_rounds(strategy, model)


class _Rounds(keras.callbacks.Callback):
    """A callback that ends rounds with the epoch, and warns of those that never are full."""

    async_safe = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Warns of rounds that are longer than an epoch."""
        strategy = self.model.distribute_strategy
        synchronization = exchange_of(strategy).synchronization
        steps = (self.params or {}).get("steps")
        assert synchronization is not None
        mixes = synchronization.mixings(strategy.extended.replicas.num_replicas) is not None
        if not steps or strategy.rank != 0:
            return
        told = (
            "%r mixes less than once an epoch, which has %d updates and ends with the mean of all."
            if mixes
            else "A round of %r has more updates than an epoch, which has %d and ends each round: "
            "replicas synchronize once an epoch."
        )
        for one in optimizers_of(self.model):
            updates = steps // (one.gradient_accumulation_steps or 1)
            if updates < synchronization.every:
                logging.getLogger("tfdp").warning(told, synchronization, updates)
                return

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Makes the moving averages one that Keras has just written into the weights."""
        local_sgd_rounds.end_averages(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends the rounds that are open."""
        end_epoch(self.model)
