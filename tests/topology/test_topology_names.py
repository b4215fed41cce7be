"""Topologies by name; that each works is in test_conformance.py."""

import pytest

from tfdp import topology


def test_names_are_sorted():
    assert list(topology.names()) == sorted(topology.names())


def test_an_object_is_returned_as_it_is():
    torus = topology.Torus(rows=2, columns=4)
    assert topology.from_name(torus) is torus


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"must name a known topology.*'ringg'.*\['auto', 'direct', "
    ):
        topology.from_name("ringg")


@pytest.mark.parametrize("value", [None, 3, topology.Native])
def test_neither_a_name_nor_a_topology_is_refused(value):
    with pytest.raises(TypeError, match=r"must be a name or a `tfdp.topology.Topology`"):
        topology.from_name(value)
