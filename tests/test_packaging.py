"""The wheel: pure Python, the package alone, and what it asks for."""

import configparser
import pathlib
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

import tfdp
from tfdp.base.hooks import versions

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
SOURCES += ("tfdp", "tests", "tutorials", "benchmarks")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds from a copy, for setuptools leaves its build directories in the source."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        subprocess.run(["cp", "-r", str(ROOT / name), str(source / name)], check=True)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([sys.executable, *words, str(output), str(source)], check=True)
    (path,) = output.iterdir()
    return path


@pytest.mark.slow
def test_the_wheel_is_pure_python(wheel):
    assert wheel.name == f"tfdp-{tfdp.__version__}-py3-none-any.whl"


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_neither_benchmarks_nor_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"tfdp", f"tfdp-{tfdp.__version__}.dist-info"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tfdp").rglob("*.py")}
    templates = [*(ROOT / "tfdp").glob("tools/*/templates/*")]
    fingerprints = (ROOT / "tfdp" / "base" / "hooks" / "fingerprints").iterdir()
    data = {path.relative_to(ROOT).as_posix() for path in (*templates, *fingerprints)}
    data |= {"tfdp/py.typed"}
    assert modules | data == {name for name in names if name.startswith("tfdp/")}


@pytest.mark.slow
def test_no_tensorflow_is_forced_on_who_has_one(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"tfdp-{tfdp.__version__}.dist-info/METADATA").decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    base = [line for line in required if "extra ==" not in line]
    assert {line.split()[1].split("<")[0].split(">")[0] for line in base} == {
        "keras",
        "numpy",
        "rich",
    }
    assert any("tensorflow-cpu" in line and 'extra == "cpu"' in line for line in required)


def _ranges(package):
    """Every range of a package's versions in the metadata, whichever distribution it comes in."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    lists = [metadata["options"]["install_requires"], *metadata["options.extras_require"].values()]
    for line in "\n".join(lists).splitlines():
        if line.startswith(package) and Requirement(line).name in (package, f"{package}-cpu"):
            yield Requirement(line).specifier


@pytest.mark.parametrize(("package", "ranges"), [("keras", 1), ("tensorflow", 3)])
def test_what_may_be_installed_was_tested_from_the_first_minor_version_to_the_last(package, ranges):
    tested = list(versions.tested(package))
    found = list(_ranges(package))
    assert len(found) == ranges
    first, last = (version.split(".") for version in (tested[0], tested[-1]))
    beyond = f"{last[0]}.{int(last[1]) + 1}"
    for allowed in found:
        assert str(allowed) == f"<{beyond},>={first[0]}.{first[1]}"
    minors = {int(version.split(".")[1]) for version in tested}
    assert minors == set(range(int(first[1]), int(last[1]) + 1))
