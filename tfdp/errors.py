"""The errors that tfdp raises beyond Python's own.

Every message says what must hold, what was received and the exact fix.
"""

from __future__ import annotations


class CollectiveMismatchError(RuntimeError):
    """Replicas do not issue the same sequence of collectives.

    A collective waits for every replica. If one replica issues another kind, dtype or shape, or
    one collective fewer, all would wait for ever; the difference is found while the step is traced.
    """

    # AutoGraph raises an error anew, as its own class, only if it is made like this.
    __init__ = Exception.__init__


class ScopeError(RuntimeError):
    """Something was made in another scope than the one that it is used in."""
