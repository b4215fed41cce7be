"""Hooks are listed, taken back and put in place again, also in what users wrote."""

import pytest

from tfdp import hooks
from tfdp.errors import HookError


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


def test_what_is_there_already_is_not_put_twice():
    with hooks.replaced(Adder, "add", doubled):
        hooks.put(Adder, "add", doubled)
        assert Adder(1).add(2) == 6


def test_what_somebody_wrapped_once_more_stays_with_an_error():
    before = vars(Adder)["add"]
    refused = pytest.raises(HookError, match=r"Adder\.add must hold what tfdp put there")
    with refused, hooks.replaced(Adder, "add", doubled):
        inner = Adder.add
        Adder.add = lambda self, number: inner(self, number)
    assert Adder(1).add(2) == 6
    Adder.add = before
