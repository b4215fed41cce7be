"""Hooks are listed, taken back and put in place again, also in what users wrote."""

import json
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from tfdp.base import hooks
from tfdp.base.hooks import hook_registry
from tfdp.errors import HookError

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "there_and_back.py"


class Adder:
    def __init__(self, start):
        self.start = start

    def add(self, number):
        return self.start + number

    @property
    def twice(self):
        return 2 * self.start


def doubled(original, *args):
    """The test doubles what is given."""
    return 2 * original(*args)


@pytest.mark.parametrize(("name", "arguments"), [("add", (2,)), ("twice", None)])
def test_a_replaced_member_is_the_very_one_afterwards(name, arguments):
    def value():
        member = getattr(Adder(1), name)
        return member if arguments is None else member(*arguments)

    before, given = vars(Adder)[name], value()
    with hooks.replaced(Adder, name, doubled):
        assert value() == 2 * given
        (entry,) = [each for each in hooks.installed() if each.owner is Adder]
        assert (entry.name, entry.original) == (name, before)
        assert entry.reason == "The test doubles what is given."
    assert vars(Adder)[name] is before
    assert not [each for each in hooks.installed() if each.owner is Adder]


def test_an_object_s_own_method_is_gone_afterwards():
    adder = Adder(1)
    with hooks.replaced(adder, "add", doubled):
        assert (adder.add(2), Adder(1).add(2)) == (6, 3)
    assert vars(adder) == {"start": 1}


def test_a_graph_s_own_method_is_gone_afterwards_although_it_has_no_dictionary():
    graph = tf.__internal__.FuncGraph("a graph")
    with graph.as_default():
        tf.constant(1)
    with hooks.replaced(graph, "get_operations", doubled):
        assert len(graph.get_operations()) == 2
        with hooks.replaced(graph, "get_operations", lambda original: 2 * original()):
            assert len(graph.get_operations()) == 4
        assert len(graph.get_operations()) == 2
    assert len(graph.get_operations()) == 1


def test_what_is_there_already_is_not_put_twice():
    with hooks.replaced(Adder, "add", doubled):
        hooks.put(Adder, "add", doubled)
        assert Adder(1).add(2) == 6


def test_two_hooks_of_one_method_and_what_overrides_it_are_put_once(monkeypatch):
    calls = []

    def first(original, *args):
        """Notes a call."""
        calls.append("first")
        return original(*args)

    def second(original, *args):
        """Notes a call as well."""
        calls.append("second")
        return original(*args)

    entries = [
        hook_registry.Registration(Adder, "add", each, True, is_installed=True)
        for each in (first, second)
    ]
    monkeypatch.setattr(hook_registry, "REGISTERED", entries)

    class Late(Adder):
        def add(self, number):
            return -number

    before = list(hooks.installed())
    try:
        for _ in range(3):
            hooks.cover(Late)
        assert Late(1).add(2) == -2
        assert calls == ["second", "first"]
        assert Adder(1).add(2) == 3
        assert calls == ["second", "first"] * 2
    finally:
        added = [each for each in hook_registry._alive() if each.tfdp_hook not in before]
        hook_registry._take_back(added[::-1])


def test_what_somebody_wrapped_once_more_stays_with_an_error():
    before = vars(Adder)["add"]
    refused = pytest.raises(HookError, match=r"Adder\.add must hold what tfdp put there")
    with refused, hooks.replaced(Adder, "add", doubled):
        inner = Adder.add
        Adder.add = lambda self, number: inner(self, number)
    assert Adder(1).add(2) == 6
    Adder.add = before


@pytest.fixture(scope="module")
def found():
    ended = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim",
    [
        "lists what is changed",
        "wraps what overrides",
        "wraps what comes later",
        "says why",
        "stays where it is refused",
        "late is as it was",
        "trains as before",
        "trains under a strategy as before",
    ],
)
def test_there_and_back(found, claim):
    assert found[claim]


@pytest.mark.slow
def test_a_pipeline_alone_puts_no_hook_in_place(found):
    assert found["changed by a pipeline"] == []


@pytest.mark.slow
def test_taking_back_leaves_nothing_and_is_refused_where_hooks_are_needed(found):
    assert found["left"] == []
    assert found["keeps a class alive"] is False
    assert "DataParallelStrategy(2 replicas on CPU:0, CPU:1) is. Drop" in found["refused"]
    assert "Model.export must hold what tfdp put there" in found["wrapped once more"]
