"""`make docs`: the reference has every public name and command, and is read without a network."""

import argparse
import html.parser
import importlib.util
import inspect
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import nbformat
import public_names
import pytest
import shared
from tools.report.browser import chromium

from tfdp.tools.cli import build_parser

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


def notebooks():
    """The module that runs the notebooks for their pages."""
    spec = importlib.util.spec_from_file_location("notebooks", DOCS / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_copies(folder):
    """Writes a copy of each notebook but the last, as if its last cell had drawn a dot."""
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK"
    dot += "+kcQAAAABJRU5ErkJggg=="
    for path in sorted(notebooks().TUTORIALS.glob("*.ipynb"))[:-1]:
        content = nbformat.read(path, as_version=4)
        last = [cell for cell in content.cells if cell.cell_type == "code"][-1]
        last.outputs = [nbformat.v4.new_output("display_data", {"image/png": dot})]
        nbformat.write(content, notebooks().copy_of(path, folder))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    def make(output):
        copies = tmp_path_factory.mktemp("copies")
        write_copies(copies)
        outcome = build(DOCS, output, copies)
        assert outcome.returncode == 0, outcome.stderr

    return shared.made_once(tmp_path_factory, "html", make)


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
        is_own = inspect.isclass(value) and value.__name__ == name.rpartition(".")[2]
        own = public_names.methods(value) if is_own else {}  # a second name links to the first
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


def test_every_guide_and_tutorial_is_a_page_that_the_first_page_leads_to(pages):
    guides = {f"{path.parent.name}/README.html" for path in DOCS.glob("*/README.md")}
    guides |= {f"tutorials/{path.stem}.html" for path in notebooks().TUTORIALS.glob("*.ipynb")}
    assert len(guides) >= 11
    assert guides <= pages.keys()
    assert guides <= pages["index.html"].links


def test_a_notebook_is_shown_with_the_pictures_of_its_copy_and_without_one_as_it_is(pages):
    *ran, last = sorted(name for name in pages if re.match(r"tutorials/\d", name))
    for name in ran:
        assert any("_images" in file for file in pages[name].loads), name
    assert not any("_images" in file for file in pages[last].loads)


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
    shutil.copytree(DOCS / "static", docs / "static")
    (docs / "contents.md").write_text("")
    broken = ("`tfdp.optimizers.LAMP`", "`tfdp.data.pipe(x)`", "[a guide](docs/data/READ.md)")
    sound = ("`tfdp.optimizers.LAMB`", "[it](README.md)", "[page](other/README.md)", "[all](docs)")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/README.md").write_text("# Not among the pages\n")
    (tmp_path / "README.md").write_text("\n\n".join(["# A page", *sound, *broken, ""]))
    outcome = build(docs, tmp_path / "html")
    assert outcome.returncode != 0
    assert all(name in outcome.stderr for name in ("optimizers.LAMP", "data.pipe", "READ.md"))
    assert outcome.stderr.count("WARNING: ") - outcome.stderr.count("WARNING: All log") == 3


@pytest.mark.exhaustive("test_every_link_between_pages_leads_somewhere_and_every_picture_is_there")
@pytest.mark.parametrize(
    "width", [390, 800, 1280, 1400], ids=["phone", "tablet", "laptop", "desktop"]
)
def test_no_page_is_wider_than_the_window(built, pages, width):
    with chromium() as browser:
        wide = [name for name in pages if browser.show(built / name, width).overflow() > 0]
    assert not wide


@pytest.mark.exhaustive("test_nothing_on_the_network_is_needed_to_read_the_pages")
def test_the_search_finds_guides_tutorials_and_names_without_a_server(built):
    titles = "return [...document.querySelectorAll('.search a')].map(link => link.textContent)"
    with chromium() as browser:
        page = (built / "search.html").as_uri()
        browser.driver.get(f"{page}?q=topology")
        browser.wait_until(  # they appear one after the other
            lambda: {"tfdp.topology", "3. Choosing a topology"} <= set(browser.run(titles))
        )


@pytest.mark.multiprocess
@pytest.mark.exhaustive(
    "test_a_notebook_is_shown_with_the_pictures_of_its_copy_and_without_one_as_it_is"
)
def test_a_notebook_runs_again_when_its_code_has_changed_and_not_its_text(tmp_path, capsys):
    path, copies = tmp_path / "one.ipynb", tmp_path / "copies"
    text, code = nbformat.v4.new_markdown_cell("# One"), nbformat.v4.new_code_cell("print(7 * 6)")
    module = notebooks()
    for text.source, code.source, ran in [
        ("# One", "print(7 * 6)", True),
        ("# Two", "print(7 * 6)", False),
        ("# Two", "print(7 * 7)", True),
    ]:
        nbformat.write(nbformat.v4.new_notebook(cells=[text, code]), path)
        module.main(copies, [path])
        assert ("one.ipynb ran in" in capsys.readouterr().out) == ran
    shown = nbformat.reads(module.with_outputs(path, copies), as_version=4).cells
    assert (shown[0].source, shown[1].outputs[0].text) == ("# Two", "49\n")
    assert len(list(copies.iterdir())) == 1
