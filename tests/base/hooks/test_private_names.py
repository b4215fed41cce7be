"""The private attributes of Keras and TensorFlow that tfdp relies on are there."""

import ast
import inspect
import re
import sys
import textwrap

import pytest

import tfdp.data
import tfdp.strategy.data_parallel
import tfdp.verification.verify  # noqa: F401
from tfdp import keras as tfdp_keras
from tfdp.base.hooks import private_names, versions

tfdp_keras.register()
SHIMS = [module for name, module in sys.modules.items() if re.match(r"tfdp\..*\b_\w+$", name)]
ATTRIBUTES = {
    versions.title(each.owner, each.name): each
    for shim in SHIMS
    for each in vars(shim).values()
    if isinstance(each, private_names.Attribute)
}


def sets(cls, name):
    """Whether the class, as it is written, assigns the attribute to its objects, or defines it."""
    if name in vars(cls):
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return False  # of Python, or in C
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("title", sorted(ATTRIBUTES))
def test_a_private_attribute_is_set_by_its_class(title):
    attribute = ATTRIBUTES[title]
    assert any(sets(cls, attribute.name) for cls in attribute.owner.__mro__)


@pytest.mark.parametrize("title", sorted(ATTRIBUTES))
def test_an_attribute_that_moved_would_be_noticed(title):
    attribute = ATTRIBUTES[title]
    assert not any(sets(cls, attribute.name + "_moved") for cls in attribute.owner.__mro__)
