"""A Sphinx extension: what each package exports, and links to it from names in backquotes."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from types import ModuleType
from typing import Any

from commands import Commands, command_of, label_of
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.nodes import make_refnode

# A dotted name, with the arguments of a call or without them.
_NAME = re.compile(r"([a-zA-Z_]\w*(?:\.\w+)*)(?:\(.*\))?")

# Code in these is no link, or one already.
_LINKS = (nodes.title, nodes.reference, pending_xref)


class PublicNames(SphinxDirective):
    """`.. public-names:: PACKAGE` documents the package and each name in its `__all__`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A table of all names, then an entry for each that is no package."""
        package = importlib.import_module(self.arguments[0])
        names = {name: getattr(package, name) for name in sorted(package.__all__)}
        lines = [
            f".. automodule:: {package.__name__}",
            "   :no-members:",
            "",
            f".. currentmodule:: {package.__name__}",
            "",
            ".. list-table::",
            "",
        ]
        for name, value in names.items():
            summary = _docstring(package, name, value).partition("\n")[0]
            lines += [f"   * - `{package.__name__}.{name}`", f"     - {summary}"]
        for name, value in names.items():
            if not inspect.ismodule(value):
                lines += ["", *_entry(package, name, value)]
        return self.parse_text_to_nodes("\n".join(lines))


def _entry(package: ModuleType, name: str, value: Any) -> list[str]:
    if inspect.isroutine(value):
        return [f".. autofunction:: {name}"]
    if not inspect.isclass(value):
        comment = textwrap.indent(_docstring(package, name, value), "   ")
        return [f".. py:data:: {name}", f"   :value: {value!r}", "", *comment.split("\n")]
    exported = [getattr(package, other) for other in package.__all__]
    # What a base gives that is documented nowhere is documented with the class.
    foreign = {
        base.__name__
        for base in value.__mro__[1:]
        if base in exported or not base.__module__.startswith("tfdp.")
    }
    lines = [f".. autoclass:: {name}", f"   :inherited-members: {', '.join(sorted(foreign))}"]
    if issubclass(value, Exception):
        lines[0] = f".. autoexception:: {name}"
    if all(base in exported or _is_known(base) for base in value.__bases__):
        lines.append("   :show-inheritance:")
    return lines


def _is_known(base: type) -> bool:
    return base is not object and base.__module__.partition(".")[0] in ("builtins", "keras")


def _docstring(package: ModuleType, name: str, value: Any) -> str:
    """Of a constant, whose object has none, the comments `#:` above its definition."""
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    imported = {
        alias.name: node.module
        for node in ast.walk(ast.parse(inspect.getsource(package)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined_in = ModuleAnalyzer.for_module(imported.get(name) or package.__name__)
    return "\n".join(defined_in.find_attr_docs()["", name]).strip()


class Name(SphinxRole):
    """The role of a text in single backquotes: code, and a link if it names what is documented."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """The code or link; names without a package are looked up where they are mentioned."""
        context = {key: self.env.ref_context.get(key) for key in ("py:module", "py:class")}
        return [_linked(nodes.literal(self.rawtext, self.text), self.env, context)], []


def link_names(app: Sphinx, page: nodes.document) -> None:
    """Makes links of the names and commands of tfdp that Markdown has in backquotes."""
    for literal in list(page.findall(nodes.literal)):
        node = literal
        while node is not None and not isinstance(node, _LINKS):
            node = node.parent
        if node is None and re.match(r"tfdp[. ]", literal.astext()):
            literal.replace_self(_linked(literal.deepcopy(), app.env, {}))


def _linked(literal: nodes.literal, env: BuildEnvironment, context: dict[str, Any]) -> nodes.Node:
    text = literal.astext()
    attributes: dict[str, Any] = {"refdoc": env.docname, "refwarn": True, **context}
    if command := command_of(text):
        target = {"refdomain": "", "reftype": "command", "reftarget": label_of(command)}
    elif name := _NAME.fullmatch(text):
        target = {"refdomain": "py", "reftype": "obj", "reftarget": name[1]}
        # Others are arguments, options, names of other libraries.
        attributes["must_exist"] = name[1].startswith("tfdp.")
    else:
        return literal
    return pending_xref("", literal, **target, **attributes)


def find_elsewhere(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Leads from where a name is defined to where it is exported and documented.

    Names that exist and are not exported stay code, and so do those of other libraries. What is
    left is a reference to nothing, which Sphinx warns of.
    """
    target = node["reftarget"]
    if node["reftype"] == "command":
        page, anchor = env.domains.standard_domain.anonlabels[target]
        return make_refnode(app.builder, node["refdoc"], page, anchor, content)
    if node["refdomain"] != "py":
        return None
    if not node.get("must_exist", True):
        return content
    *parts, name = target.split(".")
    for end in range(len(parts) - 1, 0, -1):
        found = env.domains.python_domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", ".".join([*parts[:end], name]), node, content
        )
        if found is not None:
            return found
    try:
        pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return None
    return content if parts else None


def keep_returns_untyped(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Keeps napoleon from taking the words before a colon under "Returns:" for a type.

    The signature has the type.
    """
    for number, line in enumerate(lines[:-1]):
        if line.strip() in ("Returns:", "Yields:"):
            text = lines[number + 1].lstrip()
            indent = len(lines[number + 1]) - len(text)
            lines[number + 1] = f"{' ' * indent}: {text}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("public-names", PublicNames)
    app.add_directive("commands", Commands)
    app.add_role("name", Name())
    # Before napoleon, whose priority is 500.
    app.connect("autodoc-process-docstring", keep_returns_untyped, priority=400)
    app.connect("doctree-read", link_names)
    app.connect("missing-reference", find_elsewhere)
    return {"parallel_read_safe": True}
