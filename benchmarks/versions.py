"""The benchmark of versions: with which Python, TensorFlow and Keras tfdp trains like one device.

Each combination has an environment of its own. There the cases of `benchmarks equivalence` train on
two replicas and on one device, and the tests run that fail if TensorFlow or Keras has changed.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from tfdp.base.command_line import REQUIRED, add_command, check, option, set_environment

_ROOT = pathlib.Path(__file__).parent.parent

# Python, TensorFlow, Keras. The first is the oldest; there is no TensorFlow 2.19 for Python 3.13.
VERSIONS = (
    ("3.11", "2.19", "3.11"),
    ("3.11", "2.19", "3.12"),
    ("3.11", "2.20", "3.13"),
    ("3.11", "2.21", "3.14"),
    ("3.12", "2.21", "3.15"),
    ("3.13", "2.20", "3.14"),
    ("3.13", "2.21", "3.15"),
)

# The tests that fail if a function or a private name of TensorFlow or Keras is not what it was, and
# TensorFlow's and Keras' own tests of strategies.
TESTS = (
    "tests/keras/test_hooks.py",
    "tests/strategy/test_tensorflow.py",
    "tests/strategy/test_tensorflow_guard.py",
    "tests/strategy/test_keras_guard.py",
    "tests/communication/collectives/test_runtime.py",
    "tests/data/test_tensorflow.py",
    "tests/base/determinism/test_private_names.py",
    "tests/verification/test_training_run.py",
)

_TIMEOUT_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class VersionsOptions:
    """The folder of the environments, and the interpreters that they are made of."""

    environments: pathlib.Path = option(
        REQUIRED,
        "where the environments go, some 2 GB each; those there are used",
        metavar="FOLDER",
    )
    pythons: tuple[str, ...] = option(
        ("python3.11", "python3.12", "python3.13"), "the interpreters (%(default)s)"
    )

    def __post_init__(self) -> None:
        check(self)


def add_versions(commands: argparse._SubParsersAction) -> None:
    """Adds `versions` to the benchmarks."""
    add_command(
        commands,
        "versions",
        VersionsOptions,
        _versions,
        help="with which versions of Python, TensorFlow and Keras replicas are as one device",
        description="Makes an environment for each of several versions, trains small Keras "
        "programs there on one device and on two replicas, runs the tests of what tfdp relies on "
        "in TensorFlow and Keras, and prints the table of README.",
    )


def _versions(options: VersionsOptions, parser: argparse.ArgumentParser) -> int:
    set_environment()
    pythons = {}
    for python in options.pythons:
        path = shutil.which(python)
        if path is None:
            parser.error(f"`pythons` must be installed, but {python} is not on the path.")
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        pythons[subprocess.check_output(asked, text=True).strip()] = path
    print("| Python | TensorFlow | Keras | NumPy | as one device | tests of what tfdp relies on |")
    print("|---|---|---|---|---|---|", flush=True)
    well = True
    for python, tensorflow, keras in VERSIONS:
        if python not in pythons:
            continue
        folder = options.environments / f"python{python}-tensorflow{tensorflow}-keras{keras}"
        _make(folder, pythons[python], f"tensorflow-cpu=={tensorflow}.*", f"keras=={keras}.*")
        row, good = _row(folder / "bin" / "python")
        print(row, flush=True)
        well = well and good
    return 0 if well else 1


def _make(folder: pathlib.Path, python: str, *pins: str) -> None:
    """Makes an environment, if it was not made before."""
    made = folder / "made"
    if made.exists():
        return
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words = [str(folder / "bin" / "python"), *install, "--editable", f"{_ROOT}[cpu,test]", *pins]
    subprocess.run(words, check=True)
    made.touch()


def _row(python: pathlib.Path) -> tuple[str, bool]:
    """Returns a row of the table, and whether all is well there."""
    cases = _run(python, "-m", "benchmarks.versions_worker")
    try:
        found = json.loads(cases.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        print(cases.stderr[-2000:], file=sys.stderr)
        return f"| {python} | | | | no result | |", False
    tests = _run(python, "-m", "pytest", "-q", "-m", "not exhaustive", *TESTS)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", tests.stdout.splitlines()[-1])}
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    if found["unequal"] or tests.returncode:
        print(found["unequal"], tests.stdout[-2000:], file=sys.stderr)
    equal = f"{found['cases'] - len(found['unequal'])} of {found['cases']}"
    passed = f"{counts.get('passed', 0)} of {counts.get('passed', 0) + failed}"
    versions = [found["versions"][name] for name in ("python", "tensorflow", "keras", "numpy")]
    row = f"| {' | '.join([*versions, equal, passed])} |"
    return row, not found["unequal"] and tests.returncode == 0


def _run(python: pathlib.Path, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "TFDP_TESTS_FAST": "1"}
    return subprocess.run(
        [str(python), *words],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
