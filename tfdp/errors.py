"""The errors that tfdp raises beyond Python's own.

Every message says what must hold, what was received and the exact fix.
"""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "CorruptRecordError",
    "RankLostError",
    "RankMismatchError",
    "RecordIndexError",
    "ScopeError",
]

# In every error that only says that another rank is gone: the launcher looks for the first cause.
LOST_RANK_MARK = "lost rank"


class CollectiveMismatchError(RuntimeError):
    """Replicas do not issue the same sequence of collectives.

    A collective waits for every replica. If one replica issues another kind, dtype or shape, or
    one collective fewer, all would wait for ever; the difference is found while the step is traced.
    """

    # AutoGraph raises an error anew, as its own class, only if it is made like this.
    __init__ = Exception.__init__


class ScopeError(RuntimeError):
    """Something was made in another scope than the one that it is used in."""


class ClusterError(ValueError):
    """The description of the cluster lacks something or contradicts itself.

    It comes from `TF_CONFIG`, MPI, Slurm or a cluster resolver. The message names the variable,
    what it held and, where it is known, the rank.
    """


class RankLostError(RuntimeError):
    """Another process of the cluster died, stopped or ended while this one needs it."""

    __init__ = Exception.__init__


class CollectiveTimeoutError(RuntimeError):
    """A rank did not take part in a collective, or did not say what was asked, in time."""

    __init__ = Exception.__init__


class RankMismatchError(RuntimeError):
    """Something that must be alike on all ranks is not: a variable, an option, a version."""

    __init__ = Exception.__init__


class CorruptRecordError(ValueError):
    """A record file is damaged. The message names the file and the byte."""

    __init__ = Exception.__init__


class RecordIndexError(ValueError):
    """The index beside a record file cannot be used: it is stale, damaged or of a newer tfdp."""

    __init__ = Exception.__init__
