"""The tests of the promise that are skipped on a GPU are those that docs/platforms names."""

import pathlib
import re

TESTS = pathlib.Path(__file__).parent
PAGE = TESTS.parent / "docs" / "platforms" / "README.md"
SKIPPED = re.compile(
    r'skipif\(\s*DEVICE == "GPU", reason="[^"]{20,}".*?\ndef (test_\w+)', re.DOTALL
)


def test_the_page_names_what_is_skipped_on_a_gpu():
    skipped = [
        name
        for path in sorted((TESTS / "keras").rglob("test_*.py"))
        for name in SKIPPED.findall(path.read_text())
    ]
    asked = sum(
        path.read_text().count('DEVICE == "GPU"') for path in (TESTS / "keras").rglob("*.py")
    )
    text = PAGE.read_text()
    told = text[text.index("TFDP_TESTS_DEVICE=GPU") : text.index("## What one GPU said")]
    assert skipped and asked == len(skipped)
    assert sorted(re.findall(r"`(test_\w+)`", told)) == sorted(skipped)
