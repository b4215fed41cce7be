"""The example in docs/verify runs, and raises what it says."""

import pathlib
import re
import subprocess
import sys

import pytest

GUIDE = pathlib.Path(__file__).parents[2] / "docs/verify/README.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive("verification/test_verify.py::test_a_planted_fault_is_found_and_named"),
]


def test_the_example_raises_what_the_guide_shows(tmp_path):
    text = GUIDE.read_text()
    program, shown = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", text, re.DOTALL).groups()
    (tmp_path / "check.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "check.py"], cwd=tmp_path, capture_output=True, text=True
    )
    said = done.stderr.partition("VerificationError: \n")[2]
    number = re.compile(r"\d\.\de[+-]\d\d")
    assert number.sub("#", said.strip()) == number.sub("#", shown.strip())
