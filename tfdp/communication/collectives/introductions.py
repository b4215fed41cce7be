"""The introductions of ranks when they meet, and the facts that must be equal on all."""

import importlib.metadata
import platform
import sys
from typing import Any

_DISTRIBUTIONS = ("tfdp", "tensorflow", "keras", "numpy")


def own(local_size: int) -> dict[str, Any]:
    """Returns what this rank tells of itself: its versions, and its number of devices (JSON).

    >>> own(local_size=2)["local_size"]
    2
    """
    return {"versions": _versions(), "local_size": local_size}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for distribution in _DISTRIBUTIONS:
        module = sys.modules.get(distribution)
        version = getattr(module, "__version__", None)
        versions[distribution] = version or importlib.metadata.version(distribution)
    return versions


def difference(introductions: list[dict[str, Any]]) -> str | None:
    """Returns in words what differs between ranks and must not; None if they can work together.

    Args:
      introductions: What each rank told of itself, with its `address`, by rank.
    """
    first = introductions[0]
    for rank, introduction in enumerate(introductions[1:], start=1):
        for distribution, version in first["versions"].items():
            other = introduction["versions"].get(distribution)
            if distribution != "python" and other != version:
                return (
                    f"All ranks must run the same versions, but rank 0 has {distribution} "
                    f"{version} and rank {rank} ({introduction['address']}) has {other}. Install "
                    f"{distribution}=={version} there."
                )
        if introduction["local_size"] != first["local_size"]:
            return (
                "All ranks must have the same number of devices, but rank 0 has "
                f"{first['local_size']} and rank {rank} ({introduction['address']}) has "
                f"{introduction['local_size']}. Name as many on each, by the strategy's `devices`."
            )
    return None
