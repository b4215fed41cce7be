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
    "command_line": 0,
    "errors": 0,
    "files": 0,
    "gpus": 0,
    "machine": 0,
    "shares": 0,
    "stragglers": 0,
    "tracebacks": 0,
    "words": 0,
    "bucketing": 1,
    "cluster": 1,
    "hooks": 1,
    "sharding": 1,
    "topology": 1,
    "prediction": 2,  # of steps on a cluster: asked by `plan` and `report`
    "lazy": 2,  # says which versions were tested where a private name is missing
    "determinism": 3,
    "manifest": 4,  # knows strategies, data and models by their public attributes alone
    "recording": 4,  # what graphs tell of themselves: written by all that is above
    "engines": 5,
    "optimizers": 5,
    "collectives": 6,  # made of an engine's primitives
    "compression": 7,  # what gradients become on their way; `strategy` gives it to `collectives`
    "synchronization": 7,  # when replicas that train by themselves agree
    "partition": 9,  # from the program of one device to that of a replica
    "replicas": 8,  # what replicas do together: asked by what is above, answered by `strategy`
    "checkpoint": 9,  # what a checkpoint is; the callback keeps it
    "callbacks": 10,
    "data": 9,  # owns the protocol of a feed, which Keras' trainer and the strategy are given
    "keras_adapter": 11,
    "strategy": 12,  # composes the Keras adapter, which knows nothing of it
    "xla": 13,  # has a compiler partition what the strategy would
    "verification": 13,  # trains users' programs under a strategy
    "bench": 14,
    "doctor": 14,
    "launch": 14,
    "report": 14,
    "check_gpu": 15,  # asks what the doctor, the verification and the benchmarks ask
    "demo": 15,  # starts its processes with the launcher
    "plan": 15,  # draws with the report's charts, and reads its logs
    "cli": 16,  # calls the others of its kind
}

# These import the package's lazy surface (`import tfdp`) as a user would.
USERS = {"bench", "check_gpu", "demo", "doctor", "cli", "launch", "plan"}

PRIVATE = ("tensorflow.python", "keras.src", "jax._src", "jaxlib")
PRIVATE_IMPORTS_IN = {
    "tfdp/partition/_tensorflow.py",
    "tfdp/strategy/_tensorflow.py",
    "tfdp/strategy/_tensorflow_programs.py",
    "tfdp/keras_adapter/_keras.py",
    "tfdp/keras_adapter/_tensorflow.py",
    "tfdp/collectives/_tensorflow.py",
    "tfdp/data/_tensorflow.py",
    "tfdp/determinism/_keras.py",
    "tfdp/determinism/_tensorflow.py",
    "tfdp/xla/_jax.py",
    "tfdp/xla/_tensorflow.py",
    "tfdp/verification/_keras.py",
    "tfdp/verification/_tensorflow.py",
    "tfdp/bench/other_engines.py",  # patches the strategy that tfdp is measured against
}

# What remains outside of the shims: above all what iterators of tf.distribute keep.
PRIVATE_ATTRIBUTES_IN = {
    "tfdp/bench/ddp_worker.py": {"_get_ddp_logging_data"},
    "tfdp/callbacks/checkpoint.py": {"_initial_epoch"},
    "tfdp/callbacks/loss_scale.py": {"_iterations"},
    "tfdp/keras_adapter/training/checkpointing.py": {"_current_iterator", "_steps_seen"},
    "tfdp/strategy/lifting.py": {"_clone"},
    "tfdp/strategy/input_batches.py": {"_value_specs"},
    "tfdp/strategy/inputs.py": {"_cardinality", "_enable_get_next_as_optional"},
    "tfdp/strategy/share_datasets.py": {"_cardinality", "_enable_get_next_as_optional"},
    "tfdp/strategy/share_iterators.py": {
        "_cardinality",
        "_element_spec",
        "_enable_get_next_as_optional",
        "_input_workers",
        "_iterators",
        "_replica_order",
    },
    "tfdp/verification/fresh_state.py": {"_rng", "_seed"},
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
    """The layer's name of a module: `tfdp/strategy/x.py` is in `strategy`, `tfdp/cli.py` `cli`."""
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
    assert not [f"{relative(path)}: {name}" for path in paths for name in without_docstring(path)]


def without_docstring(path):
    """The names of a module that have none."""
    tree = parsed(path)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if not ast.get_docstring(tree):
        yield "the module"
    for name, node in public_definitions(tree):
        if not ast.get_docstring(node) and not overrides(node, classes):
            yield name
