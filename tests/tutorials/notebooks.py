"""The notebooks of `tutorials/`, and what is in them."""

import ast
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
FOLDER = ROOT / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind):
    """The texts of a notebook's cells of one kind, by id."""
    content = json.loads(path.read_text())
    return {
        cell["id"]: "".join(cell["source"])
        for cell in content["cells"]
        if cell["cell_type"] == kind
    }


def nodes(path):
    """The syntax tree of all of a notebook's code, node by node."""
    for source in cells(path, "code").values():
        yield from ast.walk(ast.parse(source))
