"""The way from a `tf.distribute.Strategy` to its replicas and processes."""

from __future__ import annotations

import tensorflow as tf

from tfdp.replicas.one_process import OneProcess
from tfdp.replicas.process_group import ProcessGroup
from tfdp.replicas.protocol import Replicas


class Replicated:
    """The base class of `strategy.extended` in the strategies of tfdp, which have `Replicas`.

    Attributes:
      replicas: The strategy's replicas.
    """

    replicas: Replicas


def replicas_of(strategy: tf.distribute.Strategy | None) -> Replicas | None:
    """Returns the replicas of a strategy; None if the strategy is not one of tfdp's.

    >>> import tfdp
    >>> replicas_of(tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])).num_replicas
    2
    >>> replicas_of(tf.distribute.get_strategy()) is None
    True
    """
    extended = getattr(strategy, "extended", None)
    return extended.replicas if isinstance(extended, Replicated) else None


def processes_of(strategy: tf.distribute.Strategy | None) -> ProcessGroup:
    """Returns the processes of a strategy; `OneProcess` if the strategy is not one of tfdp's.

    >>> processes_of(tf.distribute.get_strategy()).world_size
    1
    """
    replicas = replicas_of(strategy)
    return OneProcess() if replicas is None else replicas.processes
