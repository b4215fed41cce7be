"""`make test` keeps a case of every mechanism; what it leaves out is a variant."""

import pathlib
import re
import subprocess
import sys
import types

import pytest
import tiers


def item(test, *, file="a/test_b.py", case="", of=None):
    """A collected test; `of` is what its `exhaustive` marker is given, None for no marker."""
    markers = [] if of is None else [pytest.mark.exhaustive(*of).mark]
    return types.SimpleNamespace(
        path=pathlib.Path(tiers.TESTS, file),
        originalname=test,
        name=test + case,
        nodeid=f"{file}::{test}{case}",
        iter_markers=lambda name: iter(markers),
        get_closest_marker=lambda name: markers[0] if markers else None,
    )


def test_every_exhaustive_test_of_this_suite_has_a_fast_case(request):
    assert request.config.stash[tiers.FAULTS] == []


def test_a_case_beside_a_kept_one_needs_no_name():
    assert tiers.without_a_fast_case([item("test_x", case="[1]"), item("test_x", of=())]) == []


def test_a_test_whose_every_case_is_exhaustive_is_at_fault():
    (said,) = tiers.without_a_fast_case([item("test_x", case=c, of=()) for c in ("[1]", "[2]")])
    assert said.startswith("a/test_b.py::test_x keeps no case")


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ("test_y", item("test_y")),
        ("c/test_d.py::test_y", item("test_y", file="c/test_d.py")),
    ],
)
def test_a_test_may_name_the_one_that_shows_its_mechanism(named, kept):
    variant = item("test_x", of=(named,))
    assert tiers.without_a_fast_case([variant, kept]) == []
    gone = item("test_z", file=kept.path.relative_to(tiers.TESTS).as_posix())
    (said,) = tiers.without_a_fast_case([variant, gone])
    assert "names 'test_y'" in said


def test_what_is_named_must_not_be_exhaustive_itself():
    circle = [item("test_x", of=("test_y",)), item("test_y", of=("test_x",))]
    assert len(tiers.without_a_fast_case(circle)) == 2


def test_a_file_that_was_not_collected_is_taken_to_hold_what_is_named():
    assert tiers.without_a_fast_case([item("test_x", of=("c/test_d.py::test_y",))]) == []


def test_each_exhaustive_test_is_in_one_part_and_the_others_are_in_all():
    variants = [item("test_x", case=f"[{number}]", of=()) for number in range(60)]
    everything = [item("test_x"), *variants, item("test_y")]
    parts = [tiers.in_part(everything, f"{number}/3") for number in (1, 2, 3)]
    assert all(part[0] is everything[0] and part[-1] is everything[-1] for part in parts)
    found = sorted(each.nodeid for part in parts for each in part[1:-1])
    assert found == sorted(each.nodeid for each in variants)
    assert min(map(len, parts)) > 10
    assert tiers.in_part(everything, "1/1") == everything


@pytest.mark.parametrize("part", ["0/3", "4/3"])
def test_a_part_that_there_is_not_is_refused(part):
    with pytest.raises(pytest.UsageError, match=f"is {part}; do `make exhaustive PART=1/3`"):
        tiers.in_part([], part)


def test_what_notices_a_break_is_where_the_guide_says():
    guide = (tiers.TESTS.parent / "docs" / "contributing" / "README.md").read_text()
    named = re.findall(r"`([a-z0-9_/]+\.py)::(test_\w+)`", guide)
    assert len(named) > 20
    for file, test in named:
        assert f"\ndef {test}(" in (tiers.TESTS / file).read_text(), file


PURE = (
    "topology",
    "cluster/launch",
    "tools/report",
    "base/test_bucketing.py",
    "data/test_epoch_plan.py",
)


def test_tests_of_pure_functions_do_not_import_tensorflow():
    program = (
        "import sys, pytest; code = pytest.main(sys.argv[1:]); "
        "sys.exit(code or ('tensorflow' in sys.modules and 'TensorFlow was imported'))"
    )
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    files = [str(tiers.TESTS / name) for name in PURE]
    ended = subprocess.run(
        [sys.executable, "-c", program, *options, *files],
        cwd=tiers.TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
