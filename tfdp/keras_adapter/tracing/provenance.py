"""What is known of a tensor: kept on the tensor itself, for as long as that lives."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

_MARK = "_tfdp_mark"
_OWN = "_tfdp_own"
_CLAIM = "_tfdp_claim"


class Mark(enum.Enum):
    """What a tensor is known to be.

    Attributes:
      GLOBAL: The same on all replicas.
      SUM: A gradient that was summed over replicas, and so is the same on all.
      LOCAL: A replica's own gradient, already weighted, that waits to be summed.
      LOSS: A loss of the whole batch whose gradient is that of a mean over the share's examples.
      MEAN: A mean over the share's examples.
      ROWS: Its first axis is that of the share's examples, or of equally many rows for each.
      FITS: As ROWS, as far as its length, which is fixed, tells.
      SPREAD: It holds equally many numbers of each example, in any order.
      CLAIMED: It holds examples as its `Claim` says, if lengths are what nobody has checked yet.
      RANDOM: A random number, which replicas draw each for itself.
      RANK: The replica's number.
      STATE: The handle of a variable of which each replica has a part of its own.
    """

    GLOBAL = enum.auto()
    SUM = enum.auto()
    LOCAL = enum.auto()
    LOSS = enum.auto()
    MEAN = enum.auto()
    ROWS = enum.auto()
    FITS = enum.auto()
    SPREAD = enum.auto()
    CLAIMED = enum.auto()
    RANDOM = enum.auto()
    RANK = enum.auto()
    STATE = enum.auto()


def mark(value: Any, as_what: Mark) -> Any:
    """Returns `value` after noting on it, if it is a tensor, what it is."""
    if hasattr(value, "__dict__"):
        setattr(value, _MARK, as_what)
    return value


def mark_of(value: Any) -> Mark | None:
    """What `value` was marked as; None where nothing is known."""
    return getattr(value, _MARK, None)


def mark_local(value: Any, own: Any) -> Any:
    """Notes that `value` stands for the gradient `own`, which waits for its sum; returns it."""
    setattr(value, _OWN, own)
    return mark(value, Mark.LOCAL)


def own_of(value: Any) -> Any:
    """The gradient that `mark_local` was given with `value`; None for any other."""
    return getattr(value, _OWN, None)


class Claim(NamedTuple):
    """How a tensor holds the examples if, when the step runs, some lengths are equal.

    Attributes:
      layout: A `Layout`.
      lengths: Pairs of tensors whose first axes must be equally long; None is the share itself.
    """

    layout: Any
    lengths: list[tuple[Any, Any]]


def mark_claimed(value: Any, claim: Claim) -> Any:
    """Notes a claim on `value`, for who needs it to have checked; returns it."""
    setattr(value, _CLAIM, claim)
    return mark(value, Mark.CLAIMED)


def claim_of(value: Any) -> Claim:
    """The claim on a tensor with the mark CLAIMED."""
    claim: Claim = getattr(value, _CLAIM)
    return claim


def mark_global(value: Any) -> Any:
    """Notes that all replicas have the same `value`, and returns it."""
    return value if mark_of(value) is Mark.SUM else mark(value, Mark.GLOBAL)


def is_global(value: Any) -> bool:
    """Whether `value` is known to be the same on all replicas."""
    return mark_of(value) in (Mark.GLOBAL, Mark.SUM, Mark.LOSS)
