"""Builds the pages: `python docs/build.py OUTPUT [NOTEBOOKS]`; a warning of Sphinx is an error.

Sphinx reads one folder. So the repository's files that have a page are brought together first, in
`pages` beside the output, with their links led to where the files are there. Notebooks get the
outputs of their copies in the folder NOTEBOOKS, which `docs/notebooks.py` makes; without a copy a
page shows the code alone.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys

import notebooks
from sphinx.cmd.build import main as run_sphinx

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent

# What has pages, and where it is among them. README is the first page.
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "SECURITY.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "docs": ".",
    "tutorials": "tutorials",
}

# A link of Markdown to a file.
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")


def build(output: pathlib.Path, copies: pathlib.Path | None) -> int:
    """Builds the pages in `output`; returns 1 if something is wrong with them, else 0."""
    pages = output.with_name("pages")
    shutil.rmtree(pages, ignore_errors=True)
    _bring_together(pages, copies)
    doctrees = output.with_name("doctrees")
    words = ["-q", "-W", "--keep-going", "-E", "-c", DOCS, "-d", doctrees, pages, output]
    return run_sphinx([str(word) for word in words])


def _bring_together(pages: pathlib.Path, copies: pathlib.Path | None) -> None:
    for origin in _files():
        page = pages / _place(origin)
        page.parent.mkdir(parents=True, exist_ok=True)
        if origin.suffix not in (".md", ".ipynb"):
            shutil.copy(origin, page)
            continue
        text = origin.read_text()
        if origin.suffix == ".ipynb" and copies:
            text = notebooks.with_outputs(origin, copies)
        text = _with_links_moved(text, origin, page)
        if origin == ROOT / "README.md":
            text += (DOCS / "contents.md").read_text()
        page.write_text(text)


def _files() -> list[pathlib.Path]:
    found = [ROOT / name for name in PAGES]
    inside = [file for path in found if path.is_dir() for file in path.rglob("*")]
    return [path for path in found + inside if path.is_file() and "__pycache__" not in path.parts]


def _place(origin: pathlib.Path) -> pathlib.Path:
    """Returns where a file of the repository is among the pages."""
    for name, place in PAGES.items():
        if origin.is_relative_to(ROOT / name):
            return pathlib.Path(place) / origin.relative_to(ROOT / name)
    raise LookupError(origin)


def _with_links_moved(text: str, origin: pathlib.Path, page: pathlib.Path) -> str:
    """Leads links to what has a page to that, and to other files to where they are.

    Folders, and Markdown that has no page, are named without a link. A link to nothing stays as it
    is, and is an error of Sphinx.
    """
    with_pages = _files()
    pages = page.parents[len(_place(origin).parents) - 1]

    def moved(link: re.Match[str]) -> str:
        words, target = link[1], (origin.parent / link[2]).resolve()
        if not target.exists():
            return link[0]
        if target in with_pages:
            there = pages / _place(target)
        elif target.is_dir() or target.suffix == ".md":
            return words
        else:
            there = target
        return f"[{words}]({os.path.relpath(there, page.parent)}{link[3] or ''})"

    return _LINK.sub(moved, text)


if __name__ == "__main__":
    output, *copies = map(pathlib.Path, sys.argv[1:])
    sys.exit(build(output.resolve(), copies[0] if copies else None))
