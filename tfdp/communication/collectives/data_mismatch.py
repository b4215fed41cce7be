"""The comparison of ranks' data in graphs, and the errors for ranks whose data differ."""

import contextlib
import re
import urllib.parse
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdp.base import rank_comparison
from tfdp.base.words import ranks_in_words

_DIFFERENT = "Every rank must have the same batches (no `shard`, one seed); numbers, by rank, of"

# Other characters, of a key in a batch, are quoted there: they could end a name, or are escaped.
_AS_THEY_ARE = " ,/[]`"

# What is compared besides the leaves of batches and other tensors, each with an error of its own.
ENDED = "whether there is a batch (1) or not (0)"
EXAMPLES = "the examples in a batch"
PROGRAM = "the function, as it was traced"  # by the values of Python that it was given, too
GRADIENTS = "gradients"  # of a loop that knows nothing of replicas
LEARNING_RATE = "the learning rate of optimizer"  # its name follows; the number is that of its bits

# What a callback may set at any time, and what to do where it is set on some ranks alone.
SET_BY_CALLBACKS = "what the callbacks of `fit` set"
FOR_CALLBACKS = (
    "Give the callback that sets it, EarlyStopping or ReduceLROnPlateau for example, to all ranks, "
    "and let it decide by what is the same on all, as logs are."
)

_FOR_DATASETS = "Give all ranks the same dataset: each takes its share of every batch by itself."


def checks(by_rank: tf.Tensor, names: Sequence[str]) -> list[tf.Operation]:
    """Returns the operations that fail unless all ranks have the same numbers.

    Args:
      by_rank: The numbers, a row for each rank.
      names: What they are of. Of those that differ the first is named.
    """
    named = "; ".join(urllib.parse.quote(name, _AS_THEY_ARE) for name in names)
    said = [f"{_DIFFERENT} {named}:", by_rank]
    condition = tf.reduce_all(by_rank == by_rank[:1])
    # In a graph `tf.debugging.Assert` puts a conditional around it, which each step runs.
    check = tf.raw_ops.Assert(condition=condition, data=said, summarize=-1)
    return [] if check is None else [check]


def found_in(error: Exception) -> tuple[str, list[int]] | None:
    """Returns the first name, with its numbers by rank, that `checks` found to differ; or None."""
    found = re.search(re.escape(_DIFFERENT) + r" (.*?):\] \[(\[[-\d\]\[ ]+\])\]", str(error))
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
        found = found_in(error)
        if found is None:
            raise
        said_by = f"Rank {rank}: "
        raise rank_comparison.mismatch(said_by, *_described(*found)) from error


def readable(rate: np.float32) -> float:
    """Returns a learning rate with the digits that tell it from others in float32.

    >>> readable(np.float32(0.1))
    0.1
    """
    return float(str(rate))


def _described(name: str, numbers: Sequence[int]) -> tuple[str, str, str]:
    """Returns what must hold, what was found, and what to do."""
    if name.startswith(LEARNING_RATE):
        rates = list(map(readable, np.asarray(numbers, "int32").view("float32")))
        found = f"{name} is {rank_comparison.by_ranks(rates)}"
        return f"{SET_BY_CALLBACKS} must be alike on all ranks", found, FOR_CALLBACKS
    others = ranks_in_words(rank for rank, each in enumerate(numbers) if each != numbers[0])
    if name == ENDED:
        over = ranks_in_words(rank for rank, is_there in enumerate(numbers) if not is_there)
        found = f"the data of {over} ended before those of the others"
        return "every rank must have as many batches", found, _FOR_DATASETS
    if name == EXAMPLES:
        found = f"the examples in one are {rank_comparison.by_ranks(numbers)}"
        return "every rank must have the same batches", found, _FOR_DATASETS
    if name == PROGRAM:
        return (
            "every rank must call a partitioned function with the same values",
            "those of Python among its arguments, or what it computes of them, are others on "
            f"{others} than on rank 0",
            "Compute them from what is the same on all ranks.",
        )
    if name == GRADIENTS:
        return (
            "in a loop that knows nothing of replicas every rank must be given the same batches",
            f"the gradients on {others} are others than on rank 0",
            "Give all ranks the same dataset, in the same order; or decorate the step with "
            "`@strategy.partitioned`, which has each rank compute its share.",
        )
    return (
        "every rank must be given the same global batches, of which each takes its own share",
        f"the first or last rows of {name} in one are others on {others} than on rank 0",
        "Give all ranks the same dataset, in the same order: no `shard`, one seed for what "
        "shuffles, draws or generates. Or let each rank read examples of its own by "
        "`strategy.distribute_datasets_from_function(fn)`.",
    )
