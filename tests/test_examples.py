"""Every public name has an example in its docstring, which `pytest --doctest-modules` runs."""

import ast
import doctest
import functools
import importlib
import inspect

import public_names
import pytest

NAMES = public_names.names()
DOCUMENTED = {name: value for name, value in NAMES.items() if public_names.is_documentable(value)}
CONSTANTS = NAMES.keys() - DOCUMENTED.keys() - {"tfdp.__version__"}
METHODS = [
    f"{name}.{method}"
    for name, value in DOCUMENTED.items()
    if inspect.isclass(value)
    for method in public_names.new_methods(value)
]


@functools.cache
def examples(module):
    """The names that the examples of each docstring of a module use, found as pytest finds them."""
    found = doctest.DocTestFinder().find(importlib.import_module(module), module)
    return {test.name: frozenset().union(*map(used, test.examples)) for test in found}


def used(example):
    if doctest.SKIP in example.options:
        return set()
    nodes = list(ast.walk(ast.parse(example.source)))
    raised = (example.exc_msg or "").partition(":")[0].rpartition(".")[2]
    names = {raised, *(node.id for node in nodes if isinstance(node, ast.Name))}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def used_by(value):
    return examples(value.__module__).get(f"{value.__module__}.{value.__qualname__}", frozenset())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_class_and_function_has_an_example_that_uses_it(name):
    value = DOCUMENTED[name]
    assert value.__name__ in used_by(value), f"give {name} an example, as `>>> ...`"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_its_own_is_used_by_an_example_of_its_class(name):
    owner, _, method = name.rpartition(".")
    value = DOCUMENTED[owner]
    used = set(used_by(value))
    for base in {value, *public_names.methods(value).values()}:
        prefix = f"{base.__module__}.{base.__qualname__}."
        for docstring, there in examples(base.__module__).items():
            used |= there if docstring.startswith(prefix) else set()
    assert method in used, f"use `{method}` in an example of {owner}, or of its own"


@pytest.mark.parametrize("name", sorted(CONSTANTS))
def test_every_constant_is_used_by_an_example_of_its_package(name):
    package, _, constant = name.rpartition(".")
    neighbours = [value for other, value in DOCUMENTED.items() if other.startswith(f"{package}.")]
    modules = {package, *(value.__module__ for value in neighbours)}
    assert any(constant in used for module in modules for used in examples(module).values())


def test_an_example_that_is_skipped_is_none():
    text = ">>> skipped()  # doctest: +SKIP\n>>> shown.method()\n"
    first, second = doctest.DocTestParser().get_examples(text)
    assert used(first) == set()
    assert used(second) >= {"shown", "method"}


def test_the_walk_finds_what_lies_deep_and_what_a_base_gives():
    assert "tfdp.data.sources.AbstractIndexedSource" in DOCUMENTED
    assert "tfdp.data.sources.AbstractIndexedSource.describe" in METHODS
    assert "tfdp.topology.Topology.schedule" in METHODS
    assert "tfdp.topology.Ring.schedule" not in METHODS
    assert "tfdp.optimizers.LAMB.update_step" not in METHODS
