"""The errors for ranks that do not have the same batches."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from tfdp.cluster import threads
from tfdp.errors import RankMismatchError

# The messages of checks in graphs that all ranks have the same data; each rank's number follows.
ENDED = "Every rank must have as many batches; whether there is one (1) or not (0), by rank:"
UNEQUAL = "Every rank must have the same batches; number of examples in this one, by rank:"


@contextlib.contextmanager
def explained(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raises RankMismatchError, which names the ranks, if a graph finds that their data differ."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        for text in (ENDED, UNEQUAL):
            # The message of an operation in a graph, and that of an eager check.
            found = re.search(re.escape(text) + r"(?:\] \[\[?|'\n)([\d., ]+)", str(error))
            if found is not None:
                numbers = [int(float(number)) for number in re.findall(r"[\d.]+", found[1])]
                raise RankMismatchError(_described(text, numbers, strategy)) from error
        raise


def _described(text: str, numbers: list[int], strategy: tf.distribute.Strategy) -> str:
    if text == ENDED:
        over = " and ".join(str(rank) for rank, left in enumerate(numbers) if not left)
        what = f"as many batches as the others, but the data of rank {over} ended before theirs"
    else:
        each = [f"{number} on rank {rank}" for rank, number in enumerate(numbers)]
        what = f"the same batches, but the examples in one are {', '.join(each)}"
    return (
        f"Rank {strategy.rank}: every rank must have {what}. Give all ranks the same dataset: each "
        f"takes its share of every batch by itself.{threads.hint()}"
    )
