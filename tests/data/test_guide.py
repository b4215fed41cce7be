"""The guide to input: its program runs, and what it names is there."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tfdp.data import sources

FOLDER = pathlib.Path(__file__).parent.parent.parent / "docs" / "data"
TEXT = (FOLDER / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_guide_s_program_runs(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    program = tmp_path / "guide.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr


def test_what_the_guide_names_is_there():
    named = re.findall(r"\]\(([\w.]+)\)", TEXT)
    assert "input_service.py" in named
    assert all((FOLDER / name).exists() for name in named)


def test_the_guide_names_every_source():
    missing = [
        name for name in sources.__all__ if not name.startswith("Abstract") and name not in TEXT
    ]
    assert not missing
