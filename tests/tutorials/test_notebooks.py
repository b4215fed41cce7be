"""The notebooks as they are kept: in one form, listed, and each with a claim that it asserts."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys

import pytest
from tutorials.notebooks import FOLDER, NOTEBOOKS, cells, each_notebook, nodes
from tutorials.tidy import tidied

nbformat = pytest.importorskip("nbformat")


def called(path):
    """The last names of what a notebook calls: `show` of `plt.show()`."""
    calls = (node.func for node in nodes(path) if isinstance(node, ast.Call))
    return {call.attr if isinstance(call, ast.Attribute) else ast.unparse(call) for call in calls}


def test_each_has_a_number_of_its_own():
    numbers = [int(path.name[:2]) for path in NOTEBOOKS]
    assert numbers == list(range(1, 13))


def test_the_readme_lists_them_and_nothing_else():
    listed = re.findall(r"\]\((\d\d_\w+\.ipynb)\)", (FOLDER / "README.md").read_text())
    assert sorted(set(listed)) == [path.name for path in NOTEBOOKS]


@each_notebook
def test_each_is_a_valid_notebook(path):
    nbformat.validate(json.loads(path.read_text()))


@each_notebook
def test_each_is_kept_without_outputs_and_editors_metadata(path):
    text = path.read_text()
    assert text == tidied(text), f"do `python tests/tutorials/tidy.py tutorials/{path.name}`"


@each_notebook
def test_each_begins_with_its_number_and_title_and_ends_with_what_to_remember(path):
    first, *_, last = cells(path, "markdown").values()
    assert re.match(rf"# {int(path.name[:2])}\. \S", first)
    assert last.startswith("## What to remember\n")


@each_notebook
def test_each_is_short(path):
    assert 8 <= len(cells(path, "code")) + len(cells(path, "markdown")) <= 26
    longest = max(len(source.splitlines()) for source in cells(path, "code").values())
    assert longest <= 45


@each_notebook
def test_each_draws_and_asserts_what_it_claims(path):
    assert "show" in called(path), "a figure"
    assert [node for node in nodes(path) if isinstance(node, ast.Assert) and node.msg]


def programs(path):
    """The syntax trees of a notebook's cells, and of the programs that these write as text."""
    for node in nodes(path):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Module):
            yield node
        elif isinstance(text, str) and re.search(r"^(import|from) tfdp", text, re.MULTILINE):
            yield ast.parse(text)


@pytest.mark.slow
@each_notebook
def test_what_they_import_of_tfdp_is_there(path):
    found = [node for program in programs(path) for node in ast.walk(program)]
    modules = {}
    for node in found:
        if isinstance(node, ast.Import):
            for name in (alias.name for alias in node.names if alias.name.startswith("tfdp.")):
                importlib.import_module(name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfdp"):
            module = importlib.import_module(node.module)
            for alias in (alias for alias in node.names if alias.name != "*"):
                if not hasattr(module, alias.name):  # a module that nobody has imported
                    importlib.import_module(f"{node.module}.{alias.name}")
                modules[alias.asname or alias.name] = getattr(module, alias.name)
    for node in found:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = modules.get(node.value.id)
            if inspect.ismodule(owner):
                assert hasattr(owner, node.attr), f"{owner.__name__}.{node.attr}"


@each_notebook
def test_links_lead_to_files_that_exist(path):
    for text in cells(path, "markdown").values():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (FOLDER / target).exists(), target


def test_ruff_finds_nothing_in_them():
    ruff = [sys.executable, "-m", "ruff"]
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, FOLDER], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_tidying_takes_outputs_counts_and_metadata_away_and_keeps_ids():
    cell = {
        "cell_type": "code",
        "execution_count": 3,
        "id": "a",
        "metadata": {"collapsed": True},
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}],
        "source": ["x = 1\n", "print(x)\n"],
    }
    unnamed = {"cell_type": "markdown", "metadata": {}, "source": "# 1. Naïve"}
    text = json.dumps({"cells": [cell, unnamed], "metadata": {"a": 1}, "nbformat_minor": 4})
    first, second = json.loads(tidied(text))["cells"]
    assert first == cell | {
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": ["x = 1\n", "print(x)"],
    }
    assert re.fullmatch("cell-[0-9a-f]{8}", second["id"])
    assert tidied(tidied(text)) == tidied(text)
    assert "Naïve" in tidied(text)
