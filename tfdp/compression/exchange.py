"""The arguments of a strategy that say what its replicas exchange in a training."""

import dataclasses

import tensorflow as tf

from tfdp.communication.replicas import HasReplicas, Replicas
from tfdp.compression import Cast, Compression, UpdateCompression
from tfdp.synchronization import Synchronization


@dataclasses.dataclass(frozen=True)
class ExchangeOptions:
    """What replicas exchange: sums of whole gradients, unless an attribute says otherwise.

    Attributes:
      compression: What gradients become while they travel.
      synchronization: What replicas exchange in place of gradients.
      shard: "optimizer", "gradients" or "parameters": what each replica holds a part of.
    """

    compression: Compression | UpdateCompression | None = None
    synchronization: Synchronization | None = None
    shard: str | None = None

    @property
    def keeps_partials(self) -> bool:
        """Whether code of the replicas' own wants partials of gradients, and not their sums."""
        if self.shard is not None:  # parts are cast in the program itself
            return self.update_compression is not None
        return self.compression is not None or self.replicas_differ or not self.replicas_wait

    @property
    def replicas_differ(self) -> bool:
        """Whether replicas update by themselves, and so have weights of their own meanwhile."""
        return self.synchronization is not None and self.synchronization.replicas_differ

    @property
    def replicas_wait(self) -> bool:
        """Whether an update waits for the gradients of all replicas."""
        return self.synchronization is None or self.synchronization.replicas_wait

    @property
    def cast(self) -> Cast | None:
        """The `compression`, if it is a `Cast`; else None."""
        return self.compression if isinstance(self.compression, Cast) else None

    @property
    def update_compression(self) -> UpdateCompression | None:
        """The `compression`, if it is one of updates; None if of single sums."""
        return self.compression if isinstance(self.compression, UpdateCompression) else None


def exchange_between(replicas: Replicas) -> ExchangeOptions:
    """Returns what replicas exchange, which their protocol does not know.

    >>> import tfdp
    >>> strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], shard="optimizer")
    >>> exchange_between(strategy.extended.replicas).shard
    'optimizer'
    """
    assert isinstance(replicas.exchange, ExchangeOptions)
    return replicas.exchange


def exchange_of(strategy: tf.distribute.Strategy | None) -> ExchangeOptions:
    """Returns what a strategy's replicas exchange; nothing special if it is not one of tfdp's.

    >>> import tfdp
    >>> exchange_of(tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], shard="gradients")).shard
    'gradients'
    >>> exchange_of(tf.distribute.get_strategy())
    ExchangeOptions(compression=None, synchronization=None, shard=None)
    """
    extended = getattr(strategy, "extended", None)
    if not isinstance(extended, HasReplicas):
        return ExchangeOptions()
    return exchange_between(extended.replicas)
