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
    assert others <= CUT_OTHERWISE, "docs/glossary has the words"


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


# Objects of users and other libraries that modules of the package are called like.
OBJECTS = {"keras", "memory", "model", "optimizer", "strategy", "tfds"}
FILES = {"json", "py"}


def said_in(text):
    """What backquotes in a text point to: `module.name`, and `name` after "see"."""
    dotted = re.findall(r"`([a-z_]+)\.(\w+)(?:\([^`]*\))?`", text)
    single = re.findall(r"[Ss]ee\s+`(\w+)`", text)
    return {(of, name) for of, name in dotted if of not in OBJECTS and name not in FILES}, {*single}


def known_names(path):
    """All that a module defines, imports, assigns, takes or asks for."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.alias():
                found.add((node.asname or node.name).rpartition(".")[2])
            case ast.Name():
                found.add(node.id)
            case ast.Attribute():
                found.add(node.attr)
            case ast.arg():
                found.add(node.arg)
    return found


def test_what_docstrings_point_to_is_there():
    inside = collections.defaultdict(set)
    for path in MODULES:
        inside[name_of(path)] |= known_names(path)
        inside[(path.parent.parent if path.stem == "__init__" else path.parent).name].add(
            name_of(path)
        )
    everywhere = set(inside).union(*inside.values())
    stale = []
    for path in MODULES:
        dotted, single = said_in(path.read_text())
        stale += [
            (path.name, f"{of}.{name}")
            for of, name in dotted
            if of in inside and name not in inside[of]
        ]
        stale += [(path.name, name) for name in single if name not in everywhere]
    assert not stale


def test_pointers_to_nothing_are_found():
    assert said_in("its place, see `moments`; `sizes.FixedCut`, `model.fit`") == (
        {("sizes", "FixedCut")},
        {"moments"},
    )
