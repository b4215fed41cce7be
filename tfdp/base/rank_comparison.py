"""The comparison of what ranks tell each other, and the error that names what differs.

docs/architecture lists what is compared when, and by which messages.
"""

import itertools
from collections.abc import Mapping, Sequence

from tfdp.base import threads
from tfdp.base.words import ranks_in_words
from tfdp.errors import RankMismatchError

_SHOWN_VALUES = 4

FOR_SCRIPTS = "Give all ranks the same script and data."


def check(said_by: str, subject: str, told: Sequence[Mapping[str, object]], fix: str) -> None:
    """Checks that all ranks told the same.

    Args:
      said_by: The beginning of the error, which names this rank.
      subject: What must be alike.
      told: What each rank told of it, by name.
      fix: What to do where ranks differ.

    Raises:
      RankMismatchError: Names the first that differs, in the order of names, and which rank has
        which value.

    >>> check("Rank 1: ", "`fit`", [{"epochs": 3}, {"epochs": 2}, {"epochs": 3}], "Mend that.")
    Traceback (most recent call last):
        ...
    tfdp.errors.RankMismatchError: Rank 1: `fit` must be alike on all ranks, but epochs is 3 on
    ranks 0, 2 and 2 on rank 1. Mend that....
    """
    for name in sorted({name for each in told for name in each}):
        values = [each.get(name) for each in told]
        if not all(_same(value, values[0]) for value in values):
            must = f"{subject} must be alike on all ranks"
            raise mismatch(said_by, must, f"{name} is {by_ranks(values)}", fix)


def mismatch(said_by: str, must: str, found: str, fix: str) -> RankMismatchError:
    """Returns the error that ranks differ: what must hold, what was found and what to do."""
    return RankMismatchError(f"{said_by}{must}, but {found}. {fix}{threads.hint()}")


def by_ranks(values: Sequence[object]) -> str:
    """Says in words which ranks have which value.

    >>> by_ranks([False, True, False])
    'False on ranks 0, 2 and True on rank 1'
    """
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(repr(value), []).append(rank)
    said = [f"{value} on {ranks_in_words(those)}" for value, those in ranks.items()]
    more = ["others on other ranks"] if len(said) > _SHOWN_VALUES else []
    return " and ".join(said[:_SHOWN_VALUES] + more)


def first_difference(one: Sequence[str], other: Sequence[str]) -> tuple[int, list[str | None]]:
    """Returns where two lists first differ, and what they have there.

    >>> first_difference(["a", "b"], ["a"])
    (1, ['b', None])
    """
    pairs = enumerate(itertools.zip_longest(one, other))
    return next((at, list(pair)) for at, pair in pairs if pair[0] != pair[1])


def _same(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)  # two NaNs
