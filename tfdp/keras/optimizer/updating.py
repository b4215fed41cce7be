"""Which protocol the updates of an optimizer follow, by what its strategy's replicas exchange."""

from typing import Any

from tfdp.compression import Compression, UpdateCompression
from tfdp.compression.exchange import ExchangeOptions, exchange_of
from tfdp.keras._keras import BaseOptimizer, strategy_of_optimizer
from tfdp.keras.nested_optimizers import is_outer, optimizers_of
from tfdp.keras.optimizer import update_protocol
from tfdp.keras.optimizer.asynchronous_updates import AsynchronousUpdates
from tfdp.keras.optimizer.compressed_shards import CompressedParts
from tfdp.keras.optimizer.compressed_updates import Compressed, CompressedUpdates
from tfdp.keras.optimizer.delayed_updates import DelayedUpdates
from tfdp.keras.optimizer.local_sgd_rounds import LocalSGDRounds
from tfdp.keras.optimizer.sharded_updates import ShardedUpdates
from tfdp.keras.optimizer.update_protocol import Updating
from tfdp.synchronization import Asynchronous, Delayed
from tfdp.synchronization.weight_averaging import WeightAveraging


def updating_of(optimizer: BaseOptimizer) -> Updating:
    """Returns what becomes of the gradients that reach an optimizer, and of what it keeps."""
    exchange = exchange_of(strategy_of_optimizer(optimizer))
    if update_protocol.traced_update().is_of_one_replica:  # nothing is sent
        exchange = ExchangeOptions(None, None, exchange.shard)
    if is_outer(optimizer):
        return Updating()
    if exchange.shard is not None:
        of_windows = exchange.shard != "optimizer"
        if isinstance(exchange.compression, UpdateCompression):
            return CompressedParts(of_windows, exchange.compression)
        return ShardedUpdates(of_windows, exchange.cast)
    if isinstance(exchange.synchronization, Asynchronous):
        return AsynchronousUpdates(exchange.synchronization.every)
    if isinstance(exchange.synchronization, Delayed):
        return DelayedUpdates(exchange.synchronization.steps)
    if isinstance(exchange.synchronization, WeightAveraging):
        return LocalSGDRounds(exchange.synchronization)
    if isinstance(exchange.compression, UpdateCompression):
        return CompressedUpdates(exchange.compression)
    if isinstance(exchange.compression, Compression):
        return Compressed(exchange.compression)
    return Updating()


def end_rounds(strategy: Any, owner: Any) -> None:
    """Ends what the updates of optimizers have left open; all processes must call it.

    Args:
      strategy: The strategy.
      owner: A model, whose optimizers are meant, or an optimizer.
    """
    for one in optimizers_of(owner):
        updating_of(one).end(strategy, one)


def end_epoch(strategy: Any, model: Any) -> None:
    """Ends what optimizers do not leave open after an epoch; all processes must call it."""
    for one in optimizers_of(model):
        updating = updating_of(one)
        if updating.ends_with_epochs:
            updating.end(strategy, one)
