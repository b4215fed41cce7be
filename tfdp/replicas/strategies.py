"""From a `tf.distribute.Strategy` to its replicas."""

from __future__ import annotations

import tensorflow as tf

from tfdp.replicas.one_process import OneProcess
from tfdp.replicas.process_group import ProcessGroup
from tfdp.replicas.protocol import Replicas


class Replicated:
    """The base of a strategy's inner part, `strategy.extended`, that has `Replicas`.

    It is the mark by which a strategy is known as one of tfdp's.

    Attributes:
      replicas: What the strategy's replicas do together.
    """

    replicas: Replicas


def replicas_of(strategy: tf.distribute.Strategy | None) -> Replicas | None:
    """The replicas of a strategy; None of one that is not tfdp's.

    >>> import tfdp
    >>> replicas_of(tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])).num_replicas
    2
    >>> replicas_of(tf.distribute.get_strategy()) is None
    True
    """
    extended = getattr(strategy, "extended", None)
    return extended.replicas if isinstance(extended, Replicated) else None


def processes_of(strategy: tf.distribute.Strategy | None) -> ProcessGroup:
    """The processes of a strategy's replicas; this one alone under a strategy that is not tfdp's.

    >>> processes_of(tf.distribute.get_strategy()).world_size
    1
    """
    replicas = replicas_of(strategy)
    return OneProcess() if replicas is None else replicas.processes
