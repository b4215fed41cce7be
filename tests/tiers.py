"""The rule by which `make test` leaves tests out; `make test-all` runs every one.

A test is *exhaustive* where it shows a variant of a mechanism that `make test` already shows in one
variant. Of a test with cases that is any case beyond those that `make test` keeps; nothing more is
said of it; `cases` and `first_of` mark them. A whole test says which other test shows its
mechanism:

    @pytest.mark.exhaustive("test_clipping_acts_on_the_reduced_gradient")
    @pytest.mark.exhaustive("keras/test_saving.py::test_a_saved_model_goes_on_where_it_stopped")

the second where that is in another file, below `tests/`. What is named must not be exhaustive.
"""

import functools
import os
import pathlib
import zlib

import pytest

TESTS = pathlib.Path(__file__).parent
MARKER = "exhaustive"
MARK = getattr(pytest.mark, MARKER)

# Where `conftest.py` keeps what `without_a_fast_case` says of the collected tests.
FAULTS = pytest.StashKey[list[str]]()


def cases(names, kept):
    """What `parametrize` takes: of `names`, those that are not in `kept` are exhaustive."""
    return [name if name in kept else _exhaustive(name) for name in names]


def first_of(kept, *others):
    """What `parametrize` takes: the cases beyond the first are exhaustive."""
    return [kept, *map(_exhaustive, others)]


def _exhaustive(case):
    return pytest.param(*(case if isinstance(case, tuple) else [case]), marks=MARK)


def is_exhaustive(item):
    """Whether `make test` leaves the collected test out."""
    return item.get_closest_marker(MARKER) is not None


# "2/3": of the exhaustive tests the second third runs; see `.ci/run`.
PART = os.environ.get("TFDP_TESTS_PART")


def in_part(items, part):
    """The collected tests without the exhaustive ones that are in other parts.

    Args:
      items: Collected tests.
      part: A text such as "2/3". Each exhaustive test is in one part, whatever else there is.
    """
    number, parts = map(int, part.split("/"))
    if not 1 <= number <= parts:
        raise pytest.UsageError(
            f"TFDP_TESTS_PART must be from 1/N to N/N, but is {part}; do `make exhaustive "
            "PART=1/3`."
        )
    return [
        item
        for item in items
        if not is_exhaustive(item) or zlib.crc32(item.nodeid.encode()) % parts == number - 1
    ]


def without_a_fast_case(items):
    """Describes each exhaustive test that breaks the rule.

    Args:
      items: All collected tests, those included that will be deselected. A test that is named but
        whose file was not collected is taken to be there.

    Returns:
      A sentence for each test function that is at fault.
    """
    kept = {_function(item) for item in items if not is_exhaustive(item)}
    files = {file for file, _ in map(_function, items)}
    faults = {}
    for item in items:
        function = _function(item)
        if not is_exhaustive(item) or function in kept:
            continue
        named = [name for marker in item.iter_markers(MARKER) for name in marker.args]
        shown_by = [_resolved(name, function[0]) for name in named]
        if not shown_by:
            faults[function] = "keeps no case, and names no test that shows its mechanism"
        for other in shown_by:
            if other[0] in files and other not in kept:
                faults[function] = f"names {other[1]!r} of {other[0]}, which is not in `make test`"
    return [f"{file}::{name} {fault}." for (file, name), fault in faults.items()]


def _function(item):
    return _file(item.path), getattr(item, "originalname", None) or item.name


@functools.cache
def _file(path):
    path = pathlib.Path(path)
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else str(path)


def _resolved(name, file):
    other, _, test = name.rpartition("::")
    return other or file, test
