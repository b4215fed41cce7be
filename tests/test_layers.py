"""The shape of the code: layers, sizes, docstrings, and where private imports may be."""

import ast
import functools
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "tfdp"
BENCHMARKS = PACKAGE.parent / "benchmarks"
MAX_LINES = 400

# Imports go down, or stay within one package. A new package or module must be given a layer.
LAYERS = {
    "errors": 0,
    "synchronization": 0,  # when replicas that train by themselves agree; a user's name
    "topology": 0,
    "base": 1,
    "cluster": 2,
    "optimizers": 2,
    "communication": 3,  # what replicas do together: asked by what is above, answered by `strategy`
    "callbacks": 4,
    "compression": 4,  # what gradients become on their way; `strategy` gives it to the collectives
    "data": 4,  # owns the protocol of a feed, which Keras' trainer and the strategy are given
    "partition": 4,  # from the program of one device to that of a replica
    "keras": 5,
    "strategy": 6,  # composes the rooms below, which know nothing of it
    "verification": 7,  # trains users' programs under a strategy; a user's name
    "tools": 8,  # nothing that trains imports them
}

# Nothing for users: what a name says needs no docstring there. What is exported has one all the
# same: see `test_examples`.
INNER = ("tfdp/base/", "tfdp/partition/", "tfdp/callbacks/checkpoint/", "tfdp/tools/")
NAMED_IN_GUIDES = "tfdp/partition/explain/explanation.py"

# These import the package's lazy surface (`import tfdp`) as a user would.
USERS = {"tools"}

PRIVATE = ("tensorflow.python", "keras.src", "jax._src", "jaxlib")
PRIVATE_IMPORTS_IN = {
    "tfdp/partition/_tensorflow.py",
    "tfdp/strategy/_tensorflow.py",
    "tfdp/strategy/_tensorflow_programs.py",
    "tfdp/keras/_keras.py",
    "tfdp/keras/_tensorflow.py",
    "tfdp/communication/collectives/_tensorflow.py",
    "tfdp/data/_tensorflow.py",
    "tfdp/data/distributed/_tensorflow.py",
    "tfdp/base/determinism/_keras.py",
    "tfdp/base/determinism/_tensorflow.py",
    "tfdp/strategy/xla/_jax.py",
    "tfdp/strategy/xla/_tensorflow.py",
    "tfdp/tools/bench/fit_worker.py",  # patches the strategy that tfdp is measured against
}

# What remains outside of the shims: above all what iterators of tf.distribute keep.
PRIVATE_ATTRIBUTES_IN = {
    "tfdp/tools/bench/ddp_worker.py": {"_get_ddp_logging_data"},
    "tfdp/callbacks/checkpoint_callback.py": {"_initial_epoch"},
    "tfdp/callbacks/loss_scale_monitor.py": {"_iterations"},
    "tfdp/keras/trainer/epoch_iterators.py": {"_current_iterator", "_steps_seen"},
    "tfdp/strategy/replica_graphs.py": {"_clone"},
    "tfdp/data/distributed/batch_sharding.py": {"_value_specs"},
    "tfdp/data/distributed/dataset_distribution.py": {
        "_cardinality",
        "_enable_get_next_as_optional",
    },
    "tfdp/data/distributed/shard_dataset.py": {"_cardinality"},
    "tfdp/data/distributed/shard_iterator.py": {
        "_cardinality",
        "_element_spec",
        "_enable_get_next_as_optional",
        "_input_workers",
        "_iterators",
        "_replica_order",
    },
    "tfdp/verification/training_run.py": {"_rng", "_seed"},
}

# Python's own.
PYTHONS = {"_SubParsersAction", "_exit", "_getframe", "_replace"}

MODULES = sorted(PACKAGE.rglob("*.py"))
SHIPPED_OR_NOT = MODULES + sorted(BENCHMARKS.rglob("*.py"))


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def relative(path):
    return path.relative_to(PACKAGE.parent).as_posix()


def top_level(path):
    """The layer of a module: `strategy` for `tfdp/strategy/x.py`, `errors` for `tfdp/errors.py`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Dotted names of everything that a module imports at run time, also inside functions."""
    tree = parsed(path)
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_base(path, node)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def resolve_base(path, node):
    if node.level == 0:
        return node.module
    package = path.relative_to(PACKAGE.parent).parts[: -node.level]
    return ".".join([*package, *filter(None, [node.module])])


def names_of(path):
    """What a module itself defines or assigns to, as a name or an attribute."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            yield node.attr


def of_self(node):
    """Whether an attribute is that of `self`, `cls` or `super()`."""
    return ast.unparse(node.value) in ("self", "cls", "super()")


@functools.cache
def own_names():
    return {name for path in MODULES for name in names_of(path)}


def private_attributes(path):
    """The private attributes that a module reads or sets of objects that are not tfdp's."""
    tree = parsed(path)
    # In a function outside of classes `self` is an object of Keras.
    within_classes = {
        id(node)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in ast.walk(owner)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in own_names() | PYTHONS
        and not (of_self(node) and id(node) in within_classes)
    }


def public_definitions(tree):
    """Public classes and functions of a module, and public methods of its public classes."""
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in tree.body:
        if isinstance(node, definitions) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, definitions) and not member.name.startswith("_"):
                        yield f"{node.name}.{member.name}", member


def overrides(node, classes):
    """Whether a method belongs to a subclass, where the base documents what is overridden."""
    return any(node in owner.body and owner.bases for owner in classes)


def in_folders(paths):
    """Gives a test `paths`: the modules of each folder in turn."""
    folders = sorted({path.parent for path in paths})
    cases = [[path for path in paths if path.parent == folder] for folder in folders]
    return pytest.mark.parametrize("paths", cases, ids=map(relative, folders))


every_module = in_folders(MODULES)
with_benchmarks = in_folders(SHIPPED_OR_NOT)


def test_every_top_level_module_has_a_layer():
    present = {top_level(path) for path in MODULES} - {"__init__", "__main__"}
    assert present == LAYERS.keys(), "give these a layer in LAYERS, or take them out"


@every_module
def test_imports_go_down_the_layers(paths):
    # The package's surface names all layers.
    layered = [path for path in paths if top_level(path) not in ("__init__", "__main__")]
    assert not [fault for path in layered for fault in upward(path)]


def upward(path):
    """Says of each import of a module that does not go down what is wrong with it."""
    own = top_level(path)
    for name in imports(path):
        first, *others = name.split(".")
        said = f"{relative(path)} (layer {LAYERS[own]}) must not import {name}"
        if first in ("benchmarks", "tests", "tutorials"):
            yield f"{said}: it is not shipped"
        elif name == "tfdp" and own not in USERS:
            yield f"{said}: import the module that is meant"
        elif first != "tfdp" or name == "tfdp":
            continue
        elif others[0] not in LAYERS:
            if own not in USERS:
                yield f"{said}: it is the package's surface"
        elif others[0] != own and LAYERS[others[0]] >= LAYERS[own]:
            yield f"{said} (layer {LAYERS[others[0]]})"


@with_benchmarks
def test_private_tensorflow_and_keras_imports_are_in_their_own_modules(paths):
    found = {path: [name for name in imports(path) if name.startswith(PRIVATE)] for path in paths}
    importing = {relative(path) for path, names in found.items() if names}
    assert importing <= PRIVATE_IMPORTS_IN


@every_module
def test_private_attributes_of_others_are_in_the_modules_of_private_names(paths):
    found = {relative(path): private_attributes(path) for path in paths}
    undeclared = {
        name: attributes - PRIVATE_ATTRIBUTES_IN.get(name, set())
        for name, attributes in found.items()
        if name not in PRIVATE_IMPORTS_IN
    }
    assert not {name: attributes for name, attributes in undeclared.items() if attributes}


def test_no_module_has_left_the_list_of_private_attributes():
    for name, attributes in PRIVATE_ATTRIBUTES_IN.items():
        assert private_attributes(PACKAGE.parent / name) == attributes


@every_module
def test_only_commands_draw_progress_bars_and_tables(paths):
    drawing = [p for p in paths if any(name.split(".")[0] == "rich" for name in imports(p))]
    assert {top_level(path) for path in drawing} <= USERS


@with_benchmarks
def test_no_module_is_longer_than_a_reader_can_hold(paths):
    lines = {relative(path): len(path.read_text().splitlines()) for path in paths}
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}


@with_benchmarks
def test_every_public_name_has_a_docstring(paths):
    missing = {f"{relative(path)}: {name}" for path in paths for name in without_docstring(path)}
    said = (name for name in missing if not name.endswith(": the module"))
    missing -= {each for each in said if each.startswith(INNER) and NAMED_IN_GUIDES not in each}
    assert not missing


def without_docstring(path):
    """The names of a module that have none."""
    tree = parsed(path)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if not ast.get_docstring(tree):
        yield "the module"
    for name, node in public_definitions(tree):
        if not ast.get_docstring(node) and not overrides(node, classes):
            yield name


def handed_on(init):
    """The names that a package takes from its modules to hand them on, if none is for users."""
    tree = parsed(init)
    inside = ".".join(init.parent.relative_to(PACKAGE.parent).parts)
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    if any(ast.unparse(node).startswith("__all__") for node in tree.body):
        return
    for node in imported:
        if node.module.startswith(f"{inside}."):
            yield from (f"{inside}.{alias.asname or alias.name}" for alias in node.names)


def dotted(node):
    """The names of `a.b.c`; of what does not begin with a name, those after it."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [getattr(node, "id", ""), *reversed(names)]


def test_what_a_package_hands_on_is_taken_from_it():
    paths = [*SHIPPED_OR_NOT, *sorted((PACKAGE.parent / "tests").rglob("*.py"))]
    taken = {name for path in paths for name in imports(path)}
    for path in paths:
        by_last = {name.rpartition(".")[2]: name for name in imports(path)}
        for node in ast.walk(parsed(path)):
            first, *rest = dotted(node)
            if rest:
                taken.add(".".join([by_last.get(first, first), *rest]))
    given = {name for path in MODULES if path.name == "__init__.py" for name in handed_on(path)}
    assert len(given) > 30
    assert not sorted(given - taken)


def children(folder):
    """For each file and folder within a folder what else there it imports, at run time.

    A package's `__init__.py` hands names on: who imports the package imports them all.
    """
    inside = folder.relative_to(PACKAGE.parent).parts
    found = {}
    for path in sorted(folder.rglob("*.py")):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        named = (name.split(".") for name in imports(path))
        others = {
            name[len(inside)]
            for name in named
            if tuple(name[: len(inside)]) == inside and len(name) > len(inside)
        }
        present = {each.name.removesuffix(".py") for each in folder.iterdir()}
        found.setdefault(own, set()).update((others & present) - {own})
    return found


def circles(found):
    """What can be reached from itself."""
    reached = {name: set(others) for name, others in found.items()}
    for middle in reached:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return {name for name, others in reached.items() if name in others}


FOLDERS = sorted({path.parent for path in MODULES})


@pytest.mark.parametrize("folder", FOLDERS, ids=map(relative, FOLDERS))
def test_no_folder_is_in_a_circle_of_imports(folder):
    assert not circles(children(folder))


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {"a", "b", "c"}


def test_the_rooms_are_twelve_and_the_faces():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == LAYERS.keys() - {"errors"}
    assert len(rooms - {"synchronization", "verification"}) == 12
