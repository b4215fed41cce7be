"""Formulas for equal hosts, against the transfers that the schedules list."""

import pytest

from tfdp import topology
from tfdp.topology import regular
from tfdp.topology.costs import steps
from tfdp.topology.patterns import pattern_of

UNIT = 2**40
SHAPES = [(1, 8), (8, 1), (2, 4), (4, 2), (4, 4), (3, 3), (5, 1), (2, 6), (1, 7)]
RULES = [
    topology.Native(),
    topology.Ring(),
    topology.Direct(),
    topology.HalvingDoubling(),
    topology.Torus(),
    topology.Hierarchical(),
    topology.Hierarchical(topology.HalvingDoubling(), topology.HalvingDoubling()),
    topology.Hierarchical(topology.Direct(), topology.Tree()),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize(("hosts", "each"), SHAPES)
def test_a_formula_says_what_the_transfers_say(monkeypatch, rule, hosts, each):
    count = hosts * each
    places = [rank // each for rank in range(count)]
    listed = pattern_of(rule.schedule(count, places, UNIT), places, UNIT)
    monkeypatch.setattr(regular, "_LISTED", 1)
    regular._unit.cache_clear()
    formula = regular.regular_pattern(rule, hosts, each, UNIT)
    regular._unit.cache_clear()
    if formula is None:
        assert isinstance(rule, topology.HalvingDoubling | topology.Hierarchical)
        return
    assert formula.steps == listed.steps
    assert formula.operations == listed.operations
    close = {"rel": 1e-6, "abs": 64.0}  # pieces of whole bytes
    assert formula.inside_bytes == pytest.approx(listed.inside_bytes, **close)
    assert formula.between_bytes == pytest.approx(listed.between_bytes, **close)
    for links in (
        topology.Links(1e-3, 1e10, 1e-2, 1e9),
        topology.Links(1e-3, 1e9, 1e-2, 1e10, 1e-3, 1e-4, 1e-10),
    ):
        assert topology.seconds_of(formula, UNIT, links) == pytest.approx(
            topology.seconds_of(listed, UNIT, links), rel=1e-6
        )


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_of_thousands_of_ranks_no_more_transfers_are_listed_than_there_are_ranks(monkeypatch, rule):
    listed = []

    def counted(schedule, places, size_bytes):
        listed.extend(move for moves in steps(schedule, size_bytes) for move in moves)
        return pattern_of(schedule, places, size_bytes)

    monkeypatch.setattr(regular, "pattern_of", counted)
    regular._unit.cache_clear()
    assert regular.regular_pattern(rule, 512, 8, 1e8) is not None
    regular._unit.cache_clear()
    assert len(listed) <= 512 * 8


def test_what_only_a_list_would_tell_is_none():
    assert regular.regular_pattern(topology.HalvingDoubling(), 100, 3, 1e8) is None
    assert regular.regular_pattern(topology.Torus(64, 64), 512, 8, 1e8) is None
