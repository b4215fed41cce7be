"""The short programs of the guides run; longer ones have tests of their own."""

import pathlib
import re
import subprocess
import sys

import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"


# The first makes the devices, before anything runs on them.
GUIDES = ("installing", "topologies", "optimizers", "memory", "mesh", "xla")


def program(guide):
    """All Python blocks of a guide, as one program."""
    text = (DOCS / guide / "README.md").read_text()
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.exhaustive("data/test_guide.py::test_the_guide_s_program_runs")
def test_the_programs_of_short_guides_run(tmp_path):
    path = tmp_path / "guides.py"
    path.write_text("\n".join(map(program, GUIDES)))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
