"""The types of operations that Keras's classes and functions are made of, with what is done.

`python -m pytest -s tests/partition/test_coverage.py` prints the tables.
"""

import functools
import types

import keras
import pytest
import tiers
from partition import keras_operations

import tfdp.partition.rules  # noqa: F401 # registers the rules
from tfdp.partition.rules.registry import RULES
from tfdp.partition.rules.side_effects import is_effect
from tfdp.partition.source import definition

pytestmark = pytest.mark.slow

# What occurs and has no rule, with the reason. Not every version of Keras makes all of them.
WITHOUT_RULE = {
    "BroadcastArgs": "of shapes, which all replicas know",
    "CTCBeamSearchDecoder": "rare: decodes once, after training",
    "CTCGreedyDecoder": "rare: decodes once, after training",
    "ConcatOffset": "of shapes, which all replicas know",
    "DynamicStitch": "of shapes, which all replicas know: the gradient of a sum or a mean",
    "InvertPermutation": "of numbers of axes, which all replicas know",
    "ListDiff": "of numbers of axes, which all replicas know: the gradient of a product",
    "SparseCross": "mixes examples: where they lie is a list of all",
    "StatelessRandomGetKeyCounter": "of seeds, which all replicas know",
    "Where": "mixes examples: how many places there are is known only of all",
    "XlaDynamicUpdateSlice": "rare: its gradient is made in loops of its own",
}

# Cases that cannot be read, with the reason.
UNREAD = {}

# Older versions lack arguments that cases give.
OLDEST_OF_ALL_CASES = (3, 15)

GROUPS = tiers.cases(keras_operations.GROUPS, {"layers", "losses"})

found = functools.cache(keras_operations.found)


def kind(type_):
    """What the walk does with a type of operation."""
    op = types.SimpleNamespace(type=type_, is_stateful=definition(type_).is_stateful)
    if type_ in RULES:
        return "rule"
    if is_effect(op):
        return "first replica"
    return "whole" if definition(type_).input_arg else "as it is"


def table(group):
    """The types of operations of a group of Keras's names, sorted, with what is done with each."""
    written, replaced, failed = found(group)
    rows = [(type_, kind(type_), where) for type_, where in written.items()]
    rows += [(type_, "call", where) for type_, where in replaced.items()]
    width = max(len(type_) for type_, *_ in rows)
    lines = [f"{group}: {len(written)} types of operations"]
    for type_, done, where in sorted(rows):
        some = ", ".join(list(where)[:3]) + (", ..." if len(where) > 3 else "")
        lines.append(f"  {type_:{width}} {done:13} {sum(where.values()):5} {some}")
    return "\n".join([*lines, *(f"  {name} was not read: {why}" for name, why in failed.items())])


@pytest.mark.parametrize("group", GROUPS)
def test_what_keras_traces_has_a_rule_or_a_reason_to_have_none(group):
    print(f"\n{table(group)}")
    written, _, _ = found(group)
    new = {
        type_: list(where)
        for type_, where in written.items()
        if kind(type_) in ("whole", "first replica") and type_ not in WITHOUT_RULE
    }
    assert not new, (
        f"Each type of operation must have a rule in `tfdp/partition/rules`, or a reason to have "
        f"none in `WITHOUT_RULE`, but {new} have neither. Every replica computes them on the whole "
        "batch, or the first one does for all. Write their rules, or add them with the reason."
    )


@pytest.mark.parametrize("group", GROUPS)
def test_each_public_name_is_traced(group):
    _, _, failed = found(group)
    failed = {name: why for name, why in failed.items() if name not in UNREAD}
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    if failed and version < OLDEST_OF_ALL_CASES:
        pytest.skip(f"Keras {keras.__version__} has other arguments than the cases of {failed}")
    assert not failed, (
        f"Each public name of Keras must be traced, but {failed} were not. Add their arguments to "
        "`keras_layers.py` or its like, or their names with the reason to `NO_CASE` or `NO_CALL`."
    )


def test_what_is_listed_without_a_rule_has_none():
    mended = sorted(WITHOUT_RULE.keys() & RULES.keys())
    assert not mended, f"{mended} have rules now; take them out of `WITHOUT_RULE`."


def test_each_rule_says_which_layouts_go_in_and_come_out():
    silent = {type_ for type_, rule in RULES.items() if not (rule.write.__doc__ or "").strip()}
    assert not silent, f"The rules of {sorted(silent)} must have docstrings."
