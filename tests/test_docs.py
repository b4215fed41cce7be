"""`make docs`: the reference has every public name and command, and is read without a network."""

import argparse
import html.parser
import inspect
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import public_names
import pytest

from tfdp.cli import build_parser

pytestmark = pytest.mark.slow

DOCS = pathlib.Path(__file__).parent.parent / "docs"


class Page(html.parser.HTMLParser):
    """The ids of a page, its links, and the files that a browser loads to show it."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads = set(), set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given["id"]} if given.get("id") else set()
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        shows = tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon", "manifest")
        self.loads |= {given[key] for key in ("src", "srcset", "data") if given.get(key)}
        self.loads |= {given["href"]} if shows else set()


def build(docs, output, *notebooks):
    """As `make docs` does; notebooks, where a folder is given, with the outputs that are in it."""
    command = [sys.executable, docs / "build.py", output, *notebooks]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    output = tmp_path_factory.mktemp("docs") / "html"
    outcome = build(DOCS, output)
    assert outcome.returncode == 0, outcome.stderr
    return output


@pytest.fixture(scope="module")
def pages(built):
    found = {path.relative_to(built).as_posix(): Page(path) for path in built.rglob("*.html")}
    return {name: page for name, page in found.items() if not name.startswith("_")}


def commands(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from commands(subparser)


def test_every_public_name_has_an_entry_on_the_page_of_its_package(pages):
    for package in public_names.packages():
        assert f"module-{package.__name__}" in pages[f"reference/{package.__name__}.html"].ids
    missing = []
    for name, value in public_names.names().items():
        page = pages[f"reference/{name.rpartition('.')[0]}.html"]
        own = public_names.methods(value) if inspect.isclass(value) else {}
        missing += {name, *(f"{name}.{method}" for method in own)} - page.ids
    assert not missing


def test_every_command_and_each_of_its_options_is_described(pages):
    ids = pages["reference/commands.html"].ids
    for parser in commands(build_parser()):
        label = parser.prog.replace(" ", "-")
        assert label in ids
        options = {option for action in parser._actions for option in action.option_strings}
        wanted = {f"cmdoption-{label}-{option.strip('-')}" for option in options - {"-h", "--help"}}
        assert wanted <= {re.sub("-+", "-", identifier) for identifier in ids}


def test_every_guide_is_a_page_that_the_first_page_leads_to(pages):
    guides = {f"{path.parent.name}/README.html" for path in DOCS.glob("*/README.md")}
    assert len(guides) >= 3
    assert guides <= pages.keys()
    assert guides <= pages["index.html"].links


def test_names_and_commands_in_the_text_are_links(pages):
    assert "#tfdp.data.pipeline" in pages["reference/tfdp.data.html"].links
    assert "reference/commands.html#tfdp-run" in pages["index.html"].links
    assert "tfdp.topology.html#tfdp.topology.Auto" in pages["reference/tfdp.html"].links


def test_every_link_between_pages_leads_somewhere_and_every_picture_is_there(built, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links | page.loads:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = (built / name).parent / urllib.parse.unquote(parts.path)
            path = path if parts.path else built / name
            target = pages.get(path.resolve().relative_to(built.resolve()).as_posix())
            anchor = urllib.parse.unquote(parts.fragment)
            if not path.exists() or (target and anchor and anchor not in target.ids):
                broken.append((name, link))
    assert not broken


def test_nothing_on_the_network_is_needed_to_read_the_pages(built, pages):
    loaded = {(name, file) for name, page in pages.items() for file in page.loads}
    for path in built.rglob("*.css"):
        files = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", path.read_text())
        loaded |= {(path.name, file) for file in files}
    assert any(file.endswith(".js") or ".js?" in file for _, file in loaded)
    assert not [where for where in loaded if re.match(r"(https?:)?//", where[1])]


@pytest.mark.exhaustive("test_every_public_name_has_an_entry_on_the_page_of_its_package")
def test_a_reference_to_nothing_is_an_error_that_names_it(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for path in DOCS.glob("*.py"):
        shutil.copy(path, docs)
    (docs / "index.md").write_text("")
    broken = ("`tfdp.optimizers.LAMP`", "`tfdp.data.pipe(x)`", "[a guide](docs/data/READ.md)")
    sound = ("`tfdp.optimizers.LAMB`", "[it](README.md)", "[page](other/README.md)", "[all](docs)")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/README.md").write_text("# Not among the pages\n")
    (tmp_path / "README.md").write_text("\n\n".join(["# A page", *sound, *broken, ""]))
    outcome = build(docs, tmp_path / "html")
    assert outcome.returncode != 0
    assert all(name in outcome.stderr for name in ("optimizers.LAMP", "data.pipe", "READ.md"))
    assert outcome.stderr.count("WARNING: ") - outcome.stderr.count("WARNING: All log") == 3
