"""The private names of TensorFlow that pipelines stand on are where and what they expect."""

import ast
import inspect
import pathlib

import pytest
import tensorflow as tf

from tfdp.data import _tensorflow

# What the counting iterator overrides, calls on `super()` or passes.
METHODS = {
    "OwnedIterator": {
        "__init__": ["self", "dataset", "components", "element_spec"],
        "_next_internal": ["self"],
        "get_next_as_optional": ["self"],
    },
    "IteratorSpec": {
        "__init__": ["self", "element_spec"],
        "_from_components": ["self", "components"],
        "_to_components": ["self", "value"],
    },
}


def test_every_private_name_has_a_row_here():
    assert set(_tensorflow.__all__) == set(METHODS)
    tree = ast.parse(pathlib.Path(_tensorflow.__file__).read_text(encoding="utf-8"))
    imported = [
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(imported) == sorted(_tensorflow.__all__)


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner in METHODS for name in METHODS[owner]]
)
def test_a_method_takes_what_is_passed(owner, name):
    method = vars(getattr(_tensorflow, owner))[name]
    assert list(inspect.signature(method).parameters) == METHODS[owner][name]


def test_iterators_of_datasets_are_these():
    iterator = iter(tf.data.Dataset.range(3))
    assert type(iterator) is _tensorflow.OwnedIterator
    assert type(iterator._type_spec) is _tensorflow.IteratorSpec
    assert "_element_spec" in vars(iterator)
    assert iterator._type_spec._component_specs == (tf.TensorSpec([], tf.resource),)
