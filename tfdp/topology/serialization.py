"""Topologies by name and as JSON, and the text of the file that keeps a decision of `Auto`."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from tfdp.topology.auto import Auto, Rule
from tfdp.topology.direct import Direct
from tfdp.topology.halving_doubling import HalvingDoubling
from tfdp.topology.hierarchical import Hierarchical
from tfdp.topology.model import Links
from tfdp.topology.native import Native
from tfdp.topology.ring import Ring
from tfdp.topology.schedule import Topology
from tfdp.topology.torus import Torus
from tfdp.topology.tree import Tree

_VERSION = 1


def to_json(topology: Topology) -> dict[str, Any]:
    """Returns a topology in JSON's types.

    >>> from tfdp.topology.torus import Torus
    >>> to_json(Torus(rows=2, columns=4))
    {'name': 'torus', 'rows': 2, 'columns': 4}
    """
    return {"name": name_of(topology)} | {
        name: to_json(value) if isinstance(value, Topology) else value
        for name, value in vars(topology).items()
    }


def from_json(content: dict[str, Any]) -> Topology:
    """Returns the topology that `to_json` was given.

    >>> from_json({"name": "torus", "rows": 2, "columns": 4})
    Torus(rows=2, columns=4)
    """
    fields = {
        name: from_json(value) if isinstance(value, dict) else value
        for name, value in content.items()
        if name != "name"
    }
    return type(from_name(content["name"]))(**fields)


def described(topology: Topology) -> dict[str, Any]:
    """Describes a topology for a reader: also a user's own, or the decision of "auto"; JSON.

    >>> from tfdp.topology.ring import Ring
    >>> described(Auto((Rule(2048, Ring()), Rule(None, Ring())), 2**20))["rules"][0]
    {'up_to_bytes': 2048, 'topology': {'name': 'ring'}}
    """
    if isinstance(topology, Auto):
        links = topology.links
        return {
            "name": "auto",
            "rules": [
                {"up_to_bytes": rule.up_to_bytes, "topology": described(rule.topology)}
                for rule in topology.rules
            ],
            "links": None if links is None else dataclasses.asdict(links),
        }
    try:
        return to_json(topology)
    except ValueError:
        return {"name": type(topology).__name__, "repr": repr(topology)}


def dumps(auto: Auto, hosts: Sequence[int]) -> str:
    """Returns a decision as text, with the hosts that it was made for."""
    assert auto.links is not None
    content = {
        "version": _VERSION,
        "hosts": list(hosts),
        "links": dataclasses.asdict(auto.links),
        "bucket_bytes": auto.bucket_bytes,
        "rules": [
            {"up_to_bytes": rule.up_to_bytes, "topology": to_json(rule.topology)}
            for rule in auto.rules
        ],
    }
    return json.dumps(content, indent=1)


def loads(text: str, hosts: Sequence[int], name: str) -> Auto:
    """Returns the decision in `text`.

    Args:
      text: The text that `dumps` returned.
      hosts: For each rank the index of its host; the decision must have been made for these.
      name: The name of the file, for errors.

    Raises:
      ValueError: The text holds no decision, or one for other hosts.
    """
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        rules = [
            Rule(rule["up_to_bytes"], from_json(rule["topology"])) for rule in content["rules"]
        ]
        auto = Auto(tuple(rules), content["bucket_bytes"], Links(**content["links"]))
        decided_for = content["hosts"]
        if not rules or not isinstance(auto.bucket_bytes, int) or auto.bucket_bytes < 1:
            raise ValueError(f"{len(rules)} rules, bucket_bytes {auto.bucket_bytes}")
        for rule in rules:
            rule.topology.schedule(len(decided_for), decided_for, 1)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"TFDP_TOPOLOGY_FILE must hold a decision that tfdp wrote, but {name} does not "
            f"({type(error).__name__}: {error}). Delete it, and it is written anew."
        ) from error
    if decided_for != list(hosts):
        raise ValueError(
            f"TFDP_TOPOLOGY_FILE must hold a decision for these ranks, on hosts {list(hosts)}, "
            f"but {name} was decided for ranks on hosts {decided_for}. Name another file, or "
            "delete it, and it is written anew."
        )
    return auto


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
