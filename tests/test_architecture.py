"""The page "Where things live": what it names is there, and no package is left out."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
TEXT = (ROOT / "docs/architecture/README.md").read_text()
NAMED = set(re.findall(r"`(tfdp/[\w/.]+)`", TEXT))


def test_all_that_is_named_is_there():
    assert len(NAMED) > 40
    assert not [name for name in sorted(NAMED) if not (ROOT / name).exists()]


def test_every_package_and_every_module_at_the_top_is_named():
    packages = {path.parent for path in (ROOT / "tfdp").rglob("__init__.py")}
    modules = set((ROOT / "tfdp").glob("*.py"))
    wanted = {path.relative_to(ROOT).as_posix() for path in packages | modules}
    assert wanted - NAMED <= {"tfdp", "tfdp/__init__.py"}


def test_every_layer_is_in_the_picture():
    picture = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)[1]
    top = {name.split("/")[1].removesuffix(".py") for name in NAMED} - {"__main__"}
    assert top <= set(re.findall(r"\w+", picture))
