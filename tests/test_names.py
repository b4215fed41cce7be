"""One name, one meaning: no class and no module of the package is called like another."""

import ast
import collections
import pathlib
import re

PACKAGE = pathlib.Path(__file__).parent.parent / "tfdp"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Every package has the first, and may have shims of private names.
OF_EACH_PACKAGE = {"__init__", "_tensorflow", "_keras", "_jax"}

# Words that the glossary has others for: shard, partial, boundary, redistribute, prefetch.
NOT_OF_THE_FIELD = re.compile(r"(^|_)(cuts?|summands?|seams?|borders?|conversions?|lend|lent)(_|$)")
# A buffer is cut into chunks, which are no shards of a tensor.
CUT_OTHERWISE = {"_cut"}
# To be renamed.
CUT_STILL = {"_cut_like", "_cut_lists", "_own_cuts", "are_cut", "cut", "cut_for"}


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


def definitions(path):
    """The names of a module, and of the classes and functions in it, as words with underscores."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_text()))
    names = [node.name for node in nodes if isinstance(node, kinds)]
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in [*names, path.stem]}


def test_names_are_the_field_s_words():
    found = {name for path in MODULES for name in definitions(path)}
    others = {name for name in found if NOT_OF_THE_FIELD.search(name)}
    assert others <= CUT_OTHERWISE | CUT_STILL, "docs/glossary has the words"


def test_words_of_no_field_are_found():
    assert NOT_OF_THE_FIELD.search("is_cut") and NOT_OF_THE_FIELD.search("summands_of")
    assert not NOT_OF_THE_FIELD.search("executed") and not NOT_OF_THE_FIELD.search("shortcut")


def test_no_class_is_called_like_another():
    assert not twice((name, path) for path in MODULES for name in classes(path))


def test_no_module_is_called_like_another():
    named = [(name_of(path), path) for path in MODULES]
    assert not twice((name, path) for name, path in named if name is not None)


def test_a_name_of_two_things_is_found():
    assert twice([("Step", "a"), ("Run", "a"), ("Step", "b")]) == {"Step": ["a", "b"]}
