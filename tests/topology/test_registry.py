"""Topologies by name. Every one, named or not, must sum over all ranks."""

import dataclasses
import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp import topology

NAMES = {"native"}


def test_every_named_topology_has_a_row_here():
    assert set(topology.names()) == NAMES
    assert list(topology.names()) == sorted(topology.names())


def test_every_public_topology_is_a_frozen_dataclass_with_a_name():
    public = [getattr(topology, name) for name in topology.__all__]
    classes = [
        value
        for value in public
        if inspect.isclass(value)
        and issubclass(value, topology.Topology)
        and value is not topology.Topology
    ]
    assert {type(topology.from_name(name)) for name in topology.names()} == set(classes)
    for cls in classes:
        assert dataclasses.is_dataclass(cls)
        assert cls.__dataclass_params__.frozen


@pytest.mark.parametrize("name", sorted(NAMES))
@given(world_size=st.integers(1, 33), size_bytes=st.integers(0, 2**40))
@settings(deadline=None)
def test_after_the_last_phase_every_rank_holds_the_sum(name, world_size, size_bytes):
    own = np.eye(world_size, dtype=np.int64)
    held = own.copy()
    schedule = topology.from_name(name).schedule(world_size, [0] * world_size, size_bytes)
    for phase in schedule.phases:
        for group in phase.groups:
            held[list(group)] = held[list(group)].sum(0)
    np.testing.assert_array_equal(held, np.ones_like(own))


def test_an_object_is_returned_as_it_is():
    native = topology.Native()
    assert topology.from_name(native) is native


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"must name a known topology.*'ringg'.*\['native'\]"):
        topology.from_name("ringg")


@pytest.mark.parametrize("value", [None, 3, topology.Native])
def test_neither_a_name_nor_a_topology_is_refused(value):
    with pytest.raises(TypeError, match=r"must be a name or a `tfdp.topology.Topology`"):
        topology.from_name(value)
