"""The wheel: pure Python, the package alone, and what it asks for."""

import pathlib
import subprocess
import sys
import zipfile

import pytest

import tfdp

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
    templates = (ROOT / "tfdp" / "report" / "templates").iterdir()
    fingerprints = (ROOT / "tfdp" / "hooks" / "fingerprints").iterdir()
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
