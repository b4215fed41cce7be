"""One name, one meaning: no class and no module of the package is called like another."""

import ast
import collections
import pathlib

PACKAGE = pathlib.Path(__file__).parent.parent / "tfdp"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Every package has the first, and may have shims of private names.
OF_EACH_PACKAGE = {"__init__", "_tensorflow", "_keras", "_jax"}


def twice(pairs):
    """Names that stand for several things: the name and all of them."""
    found = collections.defaultdict(list)
    for name, where in pairs:
        found[name].append(where)
    return {name: places for name, places in found.items() if len(places) > 1}


def classes(path):
    tree = ast.parse(path.read_text())
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def name_of(path):
    """A module's name, or its package's; None: one that each package may have."""
    name = path.parent.name if path.stem == "__init__" else path.stem
    return None if name in OF_EACH_PACKAGE else name


def test_no_class_is_called_like_another():
    assert not twice((name, path) for path in MODULES for name in classes(path))


def test_no_module_is_called_like_another():
    named = [(name_of(path), path) for path in MODULES]
    assert not twice((name, path) for name, path in named if name is not None)


def test_a_name_of_two_things_is_found():
    assert twice([("Step", "a"), ("Run", "a"), ("Step", "b")]) == {"Step": ["a", "b"]}
