"""The errors for ranks that do not have the same batches."""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.base import threads
from tfdp.errors import RankMismatchError

# The messages of checks in graphs that all ranks have the same data; each rank's number follows.
ENDED = "Every rank must have as many batches; whether there is one (1) or not (0), by rank:"
UNEQUAL = "Every rank must have the same batches; number of examples in this one, by rank:"
DIFFERENT = (
    "Every rank must have the same batches (no `shard`, one seed); fingerprints, by rank, of"
)

# Other characters, of a key in a batch, are quoted there: they could end a name, or are escaped.
_AS_THEY_ARE = " ,/[]`"

# What is compared besides tensors: the program that a function became, by its Python values too.
PROGRAM = "the function, as it was traced"

# The gradients of a loop that knows nothing of replicas.
GRADIENTS = "gradients"


def checks(by_rank: tf.Tensor, names: Sequence[str]) -> list[tf.Operation]:
    """Returns the operations that fail unless all ranks have the same numbers.

    Args:
      by_rank: The numbers, a row for each rank.
      names: What they are of.
    """
    named = "; ".join(urllib.parse.quote(name, _AS_THEY_ARE) for name in names)
    said = [f"{DIFFERENT} {named}:", by_rank]
    condition = tf.reduce_all(by_rank == by_rank[:1])
    # In a graph `tf.debugging.Assert` puts a conditional around it, which each step runs.
    check = tf.raw_ops.Assert(condition=condition, data=said, summarize=-1)
    return [] if check is None else [check]


def found_in(error: Exception) -> tuple[str, list[int]] | None:
    """Returns the first name, with its numbers by rank, that `checks` found to differ; or None."""
    found = re.search(re.escape(DIFFERENT) + r" (.*?):\] \[(\[[-\d\]\[ ]+\])\]", str(error))
    if found is None:
        return None
    rows = [list(map(int, row.split())) for row in re.findall(r"[-\d ]+", found[2])]
    columns = zip(found[1].split("; "), zip(*rows, strict=True), strict=True)
    return next(
        (urllib.parse.unquote(name), list(numbers))
        for name, numbers in columns
        if len({*numbers}) > 1
    )


@contextlib.contextmanager
def explained(rank: int) -> Iterator[None]:
    """Raises RankMismatchError, which names the ranks, if a graph finds that their data differ.

    Args:
      rank: The rank of this process.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        for text in (ENDED, UNEQUAL):
            # The message of an operation in a graph, and that of an eager check.
            found = re.search(re.escape(text) + r"(?:\] \[\[?|'\n)([\d., ]+)", str(error))
            if found is not None:
                numbers = [int(float(number)) for number in re.findall(r"[\d.]+", found[1])]
                raise RankMismatchError(_described(text, numbers, rank)) from error
        different = found_in(error)
        if different is not None:
            raise RankMismatchError(_told_apart(*different, rank)) from error
        raise


def _described(text: str, numbers: list[int], own: int) -> str:
    if text == ENDED:
        over = " and ".join(str(rank) for rank, left in enumerate(numbers) if not left)
        what = f"as many batches as the others, but the data of rank {over} ended before theirs"
    else:
        each = [f"{number} on rank {rank}" for rank, number in enumerate(numbers)]
        what = f"the same batches, but the examples in one are {', '.join(each)}"
    return (
        f"Rank {own}: every rank must have {what}. Give all ranks the same dataset: each "
        f"takes its share of every batch by itself.{threads.hint()}"
    )


def _told_apart(name: str, numbers: Sequence[int], own: int) -> str:
    others = " and ".join(str(rank) for rank, number in enumerate(numbers) if number != numbers[0])
    if name == PROGRAM:
        return (
            f"Rank {own}: every rank must call a partitioned function with the same "
            f"values, but those of Python among its arguments, or what it computes of them, are "
            f"others on rank {others} than on rank 0. Compute them from what is the same on all "
            f"ranks.{threads.hint()}"
        )
    if name == GRADIENTS:
        return (
            f"Rank {own}: in a loop that knows nothing of replicas every rank must be "
            f"given the same batches, but the gradients on rank {others} are others than on rank "
            "0. Give all ranks the same dataset, in the same order; or decorate the step with "
            f"`@strategy.partitioned`, which has each rank compute its share.{threads.hint()}"
        )
    return (
        f"Rank {own}: every rank must be given the same global batches, of which each "
        f"takes its own share, but the first or last rows of {name} in one are others on rank "
        f"{others} than on rank 0. Give all ranks the same dataset, in the same order: no `shard`, "
        "one seed for what shuffles, draws or generates. Or let each rank read examples of its own "
        f"by `strategy.distribute_datasets_from_function(fn)`.{threads.hint()}"
    )
