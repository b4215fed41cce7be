"""The topologies by name."""

from tfdp.topology.auto import Auto
from tfdp.topology.direct import Direct
from tfdp.topology.halving_doubling import HalvingDoubling
from tfdp.topology.hierarchical import Hierarchical
from tfdp.topology.native import Native
from tfdp.topology.ring import Ring
from tfdp.topology.schedule import Topology
from tfdp.topology.torus import Torus
from tfdp.topology.tree import Tree

_TOPOLOGIES: dict[str, type[Topology]] = {
    "auto": Auto,
    "direct": Direct,
    "halving_doubling": HalvingDoubling,
    "hierarchical": Hierarchical,
    "native": Native,
    "ring": Ring,
    "torus": Torus,
    "tree": Tree,
}


def names() -> tuple[str, ...]:
    """Returns the names that `topology=` takes.

    >>> names()
    ('auto', 'direct', 'halving_doubling', 'hierarchical', 'native', 'ring', 'torus', 'tree')
    """
    return tuple(sorted(_TOPOLOGIES))


def from_name(topology: str | Topology) -> Topology:
    """Returns the topology object for a name; an object is returned as it is.

    Raises:
      ValueError: The name is unknown.
      TypeError: `topology` is neither a name nor a `Topology`.

    >>> from_name("native")
    Native()
    >>> from_name("torus")
    Torus(rows=None, columns=None)
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


def name_of(topology: Topology) -> str:
    """Returns the name of a topology's kind.

    Raises:
      ValueError: The topology is not one of tfdp's, and has no name.

    >>> name_of(Torus(rows=2, columns=4))
    'torus'
    """
    for name, kind in _TOPOLOGIES.items():
        if type(topology) is kind:
            return name
    raise ValueError(
        f"`topology` must be one of {list(names())} to have a name, but received {topology!r}. "
        "Keep your own in code."
    )
