"""Marks: notes of what is known of a tensor, kept on the tensor for as long as it lives."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

_MARK = "_tfdp_mark"
_OWN = "_tfdp_own"
_CLAIM = "_tfdp_claim"


class Mark(enum.Enum):
    """The kind of value that a tensor is known to be.

    Attributes:
      GLOBAL: The same on all replicas.
      SUM: A gradient that was summed over replicas, and so is the same on all.
      LOCAL: A replica's own gradient, already weighted, that waits to be summed.
      LOSS: A loss of the whole batch whose gradient is that of a mean over the share's examples.
      MEAN: A mean over the share's examples.
      ROWS: A tensor whose first axis is that of the share's examples, or of equally many rows for
        each.
      FITS: A tensor whose first axis has a fixed length that fits ROWS, which proves nothing more.
      SPREAD: A tensor that holds equally many numbers of each example, in any order.
      CLAIMED: A tensor that has the layout of its `Claim` if lengths, still unchecked, are equal.
      RANDOM: Random numbers that each replica draws for itself.
      RANK: The replica's number.
      STATE: The handle of a variable of which each replica has a part of its own.
      OWN: A gradient that no other replica has and that waits for no sum: see
        `gradients.rounds`.
      APART: The handle of a variable that each replica updates by itself.
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
    OWN = enum.auto()
    APART = enum.auto()


def mark(value: Any, as_what: Mark) -> Any:
    """Notes on `value` what it is, if it can keep a note, and returns it."""
    if hasattr(value, "__dict__"):
        setattr(value, _MARK, as_what)
    return value


def mark_of(value: Any) -> Mark | None:
    """Returns the mark of `value`; None where nothing is known."""
    return getattr(value, _MARK, None)


def mark_local(value: Any, own: Any) -> Any:
    """Notes that `value` stands for the waiting gradient `own`, and returns `value`."""
    setattr(value, _OWN, own)
    return mark(value, Mark.LOCAL)


def own_of(value: Any) -> Any:
    """Returns the gradient that `value` stands for (`mark_local`); None for any other value."""
    return getattr(value, _OWN, None)


class Claim(NamedTuple):
    """The layout that a tensor has if, when the step runs, some lengths are equal.

    Attributes:
      layout: A `Layout`.
      lengths: Pairs of tensors whose first axes must be equally long; None means the share.
    """

    layout: Any
    lengths: list[tuple[Any, Any]]


def mark_claimed(value: Any, claim: Claim) -> Any:
    """Notes a claim on `value`, to be checked where the layout is needed; returns `value`."""
    setattr(value, _CLAIM, claim)
    return mark(value, Mark.CLAIMED)


def claim_of(value: Any) -> Claim:
    """Returns the claim on a tensor with the mark CLAIMED."""
    claim: Claim = getattr(value, _CLAIM)
    return claim


def mark_global(value: Any) -> Any:
    """Notes that all replicas have the same `value`, and returns it."""
    return value if mark_of(value) is Mark.SUM else mark(value, Mark.GLOBAL)


def is_global(value: Any) -> bool:
    """Returns whether `value` is known to be the same on all replicas."""
    return mark_of(value) in (Mark.GLOBAL, Mark.SUM, Mark.LOSS)
