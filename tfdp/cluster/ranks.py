"""The words for ranks in messages."""

from __future__ import annotations

from collections.abc import Iterable


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Names ranks.

    >>> ranks_in_words([1, 3])
    'ranks 1, 3'
    """
    listed = list(ranks)
    return ("rank " if len(listed) == 1 else "ranks ") + ", ".join(map(str, listed))
