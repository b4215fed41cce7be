"""What is known of a tensor: kept on the tensor itself, for as long as that lives."""

from __future__ import annotations

from typing import Any

_GLOBAL = "_tfdp_is_global"


def mark_global(value: Any) -> Any:
    """Returns `value` after noting on it, if it is a tensor, that all replicas have the same."""
    if hasattr(value, "__dict__"):
        setattr(value, _GLOBAL, True)
    return value


def is_global(value: Any) -> bool:
    """Whether `value` is known to be the same on all replicas."""
    return getattr(value, _GLOBAL, False)
