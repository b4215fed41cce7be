"""The script that breaks rules on purpose: it changes one thing, and says whether a test fails."""

import ast

import pytest
from partition.breaks import families, find
from partition.changes import breaks_of


def breaks_in(source, tmp_path, monkeypatch):
    """The breaks of a module, and its source with each of them."""
    monkeypatch.setattr("partition.changes.RULES", tmp_path)
    (tmp_path / "family.py").write_text(source)
    return {str(what): ast.unparse(broken()) for what, broken in breaks_of("family")}


def test_each_break_changes_one_thing(tmp_path, monkeypatch):
    source = "def rule(step):\n    a = step.replicated(x)\n    return step.masked(a * b, cut)"
    broken = breaks_in(source, tmp_path, monkeypatch)
    assert {said: text for said, text in broken.items() if "collectives" in said} == {
        "family.rule:2: collectives: step.replicated(x) -> x.local": source.replace(
            "step.replicated(x)", "x.local"
        )
    }
    assert [text.splitlines()[-1].strip() for text in broken.values()][1:] == [
        "return a * b",
        "return step.masked(a, cut)",
        "return step.masked(b, cut)",
    ]


def test_guards_against_nothing_are_left_in_place(tmp_path, monkeypatch):
    source = "def rule(x):\n    if x is None or x.axis:\n        return None\n    return x"
    broken = breaks_in(source, tmp_path, monkeypatch)
    assert source.replace(" or x.axis", "") in broken.values()
    assert not any("if x.axis:" in text for text in broken.values())


def test_a_column_of_a_row_of_a_table_is_forgotten(tmp_path, monkeypatch):
    source = "TABLE = [\n    KeptShard('A B', operands=(0, 1), mixed=2),\n]"
    assert list(breaks_in(source, tmp_path, monkeypatch).values()) == [
        "KeptShard('A B', operands=(0,), mixed=2)",
        "KeptShard('A B', operands=(0, 1), mixed=1)",
    ]


@pytest.mark.parametrize("family", families())
def test_every_family_can_be_broken(family):
    assert [what for what, _ in breaks_of(family)]


@pytest.mark.exhaustive("test_each_break_changes_one_thing")
@pytest.mark.multiprocess
def test_what_stands_in_for_examples_is_noticed_and_what_changes_nothing_is_not():
    telling = {
        what.number: what.kind
        for what, _ in breaks_of("reductions")
        if (what.function, what.kind) in {("total", "stand_ins"), ("_rows", "bounds")}
    }
    found = find("reductions", numbers=telling, only="travel_together or reduced_exactly")
    assert {telling[number] for number in found.noticed} == {"stand_ins"}
    assert {telling[number] for number in found.unnoticed} == {"bounds"}
