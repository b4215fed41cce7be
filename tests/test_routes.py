"""The routes of docs/architecture: what a batch and a gradient cross, and what threads know."""

import ast
import functools
import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "tfdp"
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "routes.py"
PAGE = (ROOT / "docs/architecture/routes.md").read_text()
PARTS = {
    "start": "fit begins",
    "step": "a step",
    "made": "the first step",
    "update": "update",
    "sum": "sum",
    "write": "write",
}
BATCH = {"start", "step"}
GRADIENT = {"update", "sum", "write"}

# The most modules that each may cross.
MOST_OF_BATCH, MOST_OF_STEP, MOST_OF_GRADIENT = 24, 7, 30

# What a thread, or a context of Python's, knows of what it is in the midst of, and why it is no
# argument: Keras or TensorFlow call in between.
KEPT_BY_THREAD = {
    "base/recording/tap.py": "the recorder, for optimizers and losses in Keras' step",
    "communication/engines/sequence.py": "the replica, for collectives in functions of TensorFlow",
    "communication/replicas/one_device.py": "the program of one device that Keras traces",
    "data/feed.py": "the call of `fit`, for the iterators that Keras makes",
    "keras/optimizer/update_protocol.py": "the update, for optimizers in Keras' optimizers",
    "keras/replica_step.py": "the replica of `strategy.run`, for what Keras calls in it",
    "keras/saving/under_way.py": "the save or load, for the functions that Keras writes files with",
    "strategy/mirrored_variables.py": "how variables are made, read and written, which Keras does",
}


@functools.cache
def traced():
    """Returns, for each part, the modules that were crossed and their functions."""
    run = subprocess.run(
        [sys.executable, SCRIPT, PACKAGE], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def named(part):
    """Returns the same of the page."""
    block = re.search(rf"### {PARTS[part]}\n+```text\n(.*?)```", PAGE, re.DOTALL)[1]
    return dict(line.split(":", 1) for line in block.splitlines())


def crossed(parts):
    return {module for part in parts for module in traced()[part]}


@pytest.mark.parametrize("part", PARTS)
def test_a_route_crosses_what_the_page_names(part):
    assert traced()[part] == named(part)


def test_no_route_becomes_longer():
    found = {
        "batch": len(crossed(BATCH)),
        "step": len(crossed({"step"})),
        "gradient": len(crossed(GRADIENT)),
    }
    assert found == {
        "batch": MOST_OF_BATCH,
        "step": MOST_OF_STEP,
        "gradient": MOST_OF_GRADIENT,
    }


def test_a_step_enters_the_strategy_once():
    entered = {module for module in crossed({"step"}) if module.startswith("strategy/")}
    assert entered == {"strategy/programs/program_call"}


def test_a_gradient_goes_one_way():
    rooms = {part: {module.split("/")[0] for module in crossed({part})} for part in GRADIENT}
    assert rooms["sum"].isdisjoint({"keras", "compression"})
    assert rooms["write"] == {"partition"}


def test_the_page_names_no_module_twice_in_a_part_and_says_how_many_there_are():
    for parts, route in ((BATCH, "A batch"), (GRADIENT, "A gradient")):
        (said,) = re.findall(rf"## {route}:[^\n]*\n\n(\d+) modules", PAGE)
        assert int(said) == len(set().union(*map(named, parts)))


def test_what_is_kept_by_thread_has_a_reason_each():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            value = getattr(node, "value", None)
            if isinstance(value, ast.Call):
                called = ast.unparse(value.func).split(".")[-1]
                if called in ("local", "ContextVar"):
                    found.add(path.relative_to(PACKAGE).as_posix())
    assert found == set(KEPT_BY_THREAD)
    assert len(found) <= 8
