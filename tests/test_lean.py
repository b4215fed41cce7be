"""Keras is imported without what it does not need, and nothing is taken from who has it."""

import subprocess
import sys

import tiers

SCRIPT = """
import sys
import lean
assert "keras" not in sys.modules
import matplotlib
lean.import_keras()
assert "keras" in sys.modules
assert sys.modules["matplotlib"] is matplotlib
assert "sklearn" not in sys.modules
import sklearn
lean.import_keras()
assert sys.modules["sklearn"] is sklearn
"""


def test_keras_is_imported_without_others_and_takes_nothing_away():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tiers.TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
