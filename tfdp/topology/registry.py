"""Topologies by name."""

from __future__ import annotations

from tfdp.topology.base import Topology
from tfdp.topology.native import Native

_TOPOLOGIES: dict[str, type[Topology]] = {"native": Native}


def names() -> tuple[str, ...]:
    """The names that `topology=` takes.

    >>> names()
    ('native',)
    """
    return tuple(sorted(_TOPOLOGIES))


def from_name(topology: str | Topology) -> Topology:
    """The topology object for a name; an object is returned as it is.

    Raises:
      ValueError: The name is unknown.
      TypeError: Neither a name nor a `Topology`.

    >>> from_name("native")
    Native()
    """
    if isinstance(topology, Topology):
        return topology
    if not isinstance(topology, str):
        raise TypeError(
            "`topology` must be a name or a `tfdp.topology.Topology`, but received "
            f"{topology!r} of type {type(topology).__name__}. Use one of {list(names())}."
        )
    if topology not in _TOPOLOGIES:
        raise ValueError(
            f"`topology` must name a known topology, but received {topology!r}. "
            f"Use one of {list(names())} or an object of a `tfdp.topology.Topology` subclass."
        )
    return _TOPOLOGIES[topology]()
