"""Decisions in files."""

import json

import pytest

from tfdp import topology
from tfdp.topology import serialization

HOSTS = [0, 1, 0, 1]
OBJECTS = [
    topology.Native(),
    topology.Torus(rows=2, columns=4),
    topology.Hierarchical(topology.Tree(), topology.HalvingDoubling()),
]


@pytest.mark.parametrize("rule", OBJECTS, ids=str)
def test_a_topology_is_read_as_it_was_written(rule):
    assert serialization.from_json(json.loads(json.dumps(serialization.to_json(rule)))) == rule


def decision():
    return topology.decide(4, HOSTS, topology.Links(1e-3, 3e8, 1.5e-3, 24e6, 3e-4, 2e-4))


def test_a_decision_is_read_as_it_was_written():
    assert serialization.loads(serialization.dumps(decision(), HOSTS), HOSTS, "f") == decision()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "rules": []}', "nonsense"]
)
def test_anything_else_is_refused_with_the_file_and_the_fix(text):
    with pytest.raises(ValueError, match=r"must hold a decision.*but /x/f does not.*Delete it"):
        serialization.loads(text, HOSTS, "/x/f")


@pytest.mark.parametrize(("key", "value"), [("bucket_bytes", "a"), ("rules", []), ("links", {})])
def test_a_changed_file_is_refused(key, value):
    content = json.loads(serialization.dumps(decision(), HOSTS)) | {key: value}
    with pytest.raises(ValueError, match=r"must hold a decision"):
        serialization.loads(json.dumps(content), HOSTS, "f")


def test_a_decision_for_other_ranks_is_refused_with_both():
    text = serialization.dumps(decision(), HOSTS)
    with pytest.raises(ValueError, match=r"on hosts \[0, 0\], but f was.*\[0, 1, 0, 1\]"):
        serialization.loads(text, [0, 0], "f")


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
