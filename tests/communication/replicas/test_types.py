"""mypy knows the seam: what is used wrongly it names."""

import pathlib
import re

import pytest

MISUSE = pathlib.Path(__file__).parent / "misuse.py"
PROJECT = MISUSE.parents[3] / "pyproject.toml"


@pytest.mark.slow
def test_mypy_names_every_misuse_of_the_seam_and_nothing_else():
    api = pytest.importorskip("mypy.api")
    options = ["--config-file", str(PROJECT), "--follow-imports", "silent", "--cache-dir"]
    report, errors, _ = api.run([*options, str(PROJECT.parent / ".mypy_cache"), str(MISUSE)])
    found = dict(re.findall(r"misuse\.py:(\d+): error: (.*)", report))
    expected = {
        str(number): line.partition("# error: ")[2]
        for number, line in enumerate(MISUSE.read_text().splitlines(), start=1)
        if "# error: " in line
    }
    assert found.keys() == expected.keys(), report + errors
    for number, words in expected.items():
        assert words in found[number]
