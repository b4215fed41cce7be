"""The state of modules: each registry, counter and cache of the process has a reason on a page.

They are found in the syntax trees. A name of a module, or of a class, is a registry if a function
writes it, or what it holds; and by what it is made of, such as a counter. It is a table, and no
registry, if only functions that are called as modules are imported write it, such as decorators.
What a function writes of its arguments, and an object's methods of the object, is not followed.
"""

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs/architecture/registries.md").read_text(encoding="utf-8")
MOST = 18

LOCKS = {"Lock", "RLock", "Condition", "Event"}
BY_THREAD = {"local", "ContextVar"}  # `test_routes` has their reasons
MADE = {"count", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary"}
WRITES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop"),
    *("popitem", "popleft", "remove", "reverse", "setdefault", "sort", "update"),
}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def trees():
    """Returns the tree of each module, by its dotted name."""
    return {module_of(path): ast.parse(path.read_text()) for path in ROOT.glob("tfdp/**/*.py")}


def at_import(body, prefix=""):
    """Yields the statements of a module that run as it is imported, each with its class."""
    for node in body:
        yield prefix, node
        if isinstance(node, ast.ClassDef):
            yield from at_import(node.body, f"{node.name}.")
        for block in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from at_import(getattr(node, block, []), prefix)


@functools.cache
def held(module):
    """Returns what the names of a module, and of its classes, are made of."""
    found = {}
    for prefix, node in at_import(trees()[module].body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in getattr(node, "targets", None) or [node.target]:
                names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
                found |= {f"{prefix}{name}": node.value for name in names}
        elif isinstance(node, FUNCTIONS):
            found[f"{prefix}{node.name}"] = node
    return found


@functools.cache
def imported(module):
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(trees()[module])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def meant(module, node):
    """Returns the module and the name that an expression in a module means; None: of no module."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = ".".join(imported(module).get(node.value.id, ()))
        return named(owner, node.attr) or named(module, f"{node.value.id}.{node.attr}")
    return named(module, node.id) if isinstance(node, ast.Name) else None


def named(module, name):
    if module not in trees():
        return None
    source = imported(module).get(name, ("", ""))
    if name in held(module) or source == (module, name):  # or it is a module of the folder
        return module, name
    return named(*source)


def made(value):
    return ast.unparse(value.func).split(".")[-1] if isinstance(value, ast.Call) else None


def written(node):
    """Yields the expressions whose values a node writes."""
    if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield node.value
        yield node
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            yield node.func.value
        if isinstance(node.func, ast.Name) and node.func.id == "next":
            yield node.args[0]
    elif isinstance(node, ast.Global):
        yield from map(ast.Name, node.names)


def own_names(function):
    """Returns the names that a function gives values itself: its arguments and variables."""
    nodes = list(ast.walk(function))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    elsewhere = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    return ({n.arg for n in nodes if isinstance(n, ast.arg)} | stored) - elsewhere


def called(node):
    return node.func if isinstance(node, ast.Call) else node


def is_of(node, names):
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


@functools.cache
def functions():
    """Returns the module, the name and the tree of each function but those within others."""
    return [
        (module, f"{prefix}{node.name}", node)
        for module, tree in trees().items()
        for prefix, node in at_import(tree.body)
        if isinstance(node, FUNCTIONS)
    ]


@functools.cache
def found():
    """Returns what is state, by its kind: registries, tables, locks and caches."""
    writers, late, at_once = {}, set(), set()
    kinds = {kind: set() for kind in ("registry", "table", "lock", "cache")}
    for module, name, function in functions():
        own = own_names(function)
        for node in (each for statement in function.body for each in ast.walk(statement)):
            late.add(meant(module, node))
            for target in written(node):
                if not is_of(target, own):
                    writers.setdefault(meant(module, target), set()).add((module, name))
        for node in map(called, function.decorator_list):
            at_once.add(meant(module, node))
            if ast.unparse(node).split(".")[-1] in ("cache", "lru_cache"):
                kinds["cache"].add((module, name))
    for module, tree in trees().items():
        for _, statement in at_import(tree.body):
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr):
                nodes = list(ast.walk(statement))
                calls = [each.func for each in nodes if isinstance(each, ast.Call)]
                at_once |= {meant(module, each) for each in calls}
                late |= {meant(module, each) for each in nodes if each not in calls}
        for name, value in held(module).items():
            who, kind = writers.get((module, name), set()), made(value)
            if kind in LOCKS:
                kinds["lock"].add((module, name))
            elif kind in MADE or (who and kind not in BY_THREAD):
                is_table = kind not in MADE and who <= at_once - late
                kinds["table" if is_table else "registry"].add((module, name))
    return kinds


def as_said(kind):
    """Returns the names of one kind as the page writes them."""
    paths = {module: f"{module.replace('.', '/').removeprefix('tfdp/')}" for module, _ in kind}
    return {f"{paths[module]}:{name}" for module, name in kind}


def said(title):
    """Returns the names in the page's section of this title, each with its reason."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))


def test_every_registry_and_counter_has_a_reason_and_there_are_no_more():
    caches = as_said(found()["cache"])
    named_here = said("Registries and counters")
    assert {*named_here} - caches == as_said(found()["registry"])
    assert len(named_here) <= MOST
    assert int(re.search(r"^(\d+) names", PAGE, re.MULTILINE)[1]) == len(named_here)


def test_every_cache_is_of_its_arguments_alone_or_a_registry():
    pure, state = said("Caches"), said("Registries and counters")
    assert {*pure} | ({*state} & as_said(found()["cache"])) == as_said(found()["cache"])
    assert {*pure}.isdisjoint(state)


def test_every_table_and_every_lock_is_named():
    assert {*said("Tables")} == as_said(found()["table"])
    assert {*said("Locks")} == as_said(found()["lock"])
