"""A replica's share of a batch, with what is known of it from how the batch was cut."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.errors import RankMismatchError
from tfdp.keras_adapter.step import Step

# What graphs say, with one number for each process, where ranks have other data than others.
ENDED = "Every rank must have as many batches; whether there is one (1) or not (0), by rank:"
UNEQUAL = "Every rank must have the same batches; number of examples in this one, by rank:"


class Cut(NamedTuple):
    """What iterators of shares give to a step of Keras' trainer, for each replica.

    Attributes:
      rows: The replica's examples, as the model's step takes them; a stand-in, another's example,
        where it has none.
      place: Where they are in the batch, int64 (4): the replica's rank, the number of its examples,
        of those before them, and of those in the batch.
    """

    rows: Any
    place: tf.Tensor


class FullCut(Cut):
    """Of a replica that surely has examples, as have all others."""


def place(step: Step, data: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, int | None]:
    """Where a replica's examples are in the batch.

    Args:
      step: The replica's.
      data: A `Cut`, or a share of which nothing more is known: then the replicas are asked.

    Returns:
      The number of the share's examples, of those before them, of the batch's, and of the share's
      rows, with a stand-in, float64; and this last again where tracing knows it.

    Raises:
      tf.errors.InvalidArgumentError: In the step, where the ranks' batches are not of one size.
    """
    if not isinstance(data, Cut):
        examples, rows = _num_examples(data)
        # One sum tells each replica how many there are, and how many come before its own.
        (counts,) = step.meet(
            [tf.one_hot(step.replica_id, step.num_replicas, examples, dtype=tf.float64)]
        )
        before, total = tf.reduce_sum(counts[: step.replica_id]), tf.reduce_sum(counts)
        return examples, before, total, examples, rows
    computed, rows = _num_examples(data.rows)
    _, examples, before, total = tf.unstack(tf.cast(data.place, tf.float64))
    if step.replicas.processes.world_size > 1:  # each has cut a batch that it read itself
        total = _alike(step, total)
    return examples, before, total, computed, rows


def rows_of(leaf: Any) -> Any:
    """The number of rows of a tensor, dense, ragged or sparse, or an array; int64."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, tf.int64)[0]


@contextlib.contextmanager
def explained(strategy: Any) -> Iterator[None]:
    """Raises RankMismatchError, naming the ranks, where a graph finds that their data differ."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        for text in (ENDED, UNEQUAL):
            # As an operation says it, and as it is said eagerly.
            found = re.search(re.escape(text) + r"(?:\] \[\[?|'\n)([\d., ]+)", str(error))
            if found is not None:
                numbers = [int(float(number)) for number in re.findall(r"[\d.]+", found[1])]
                raise RankMismatchError(_described(text, numbers, strategy)) from error
        raise


def _described(text: str, numbers: list[int], strategy: Any) -> str:
    if text == ENDED:
        over = " and ".join(str(rank) for rank, left in enumerate(numbers) if not left)
        what = f"as many batches as the others, but the data of rank {over} ended before theirs"
    else:
        each = [f"{number} on rank {rank}" for rank, number in enumerate(numbers)]
        what = f"the same batches, but the examples in one are {', '.join(each)}"
    return (
        f"Rank {strategy.rank}: every rank must have {what}. Give all ranks the same dataset: each "
        "takes its share of every batch by itself."
    )


def _alike(step: Step, total: tf.Tensor) -> tf.Tensor:
    """`total`, once the other processes have been found to have the same."""
    (totals,) = step.meet([tf.one_hot(step.replica_id, step.num_replicas, total, dtype=tf.float64)])
    by_process = totals[:: step.replicas.processes.local_size]
    alike = tf.debugging.Assert(
        tf.reduce_all(tf.equal(by_process, total)), [UNEQUAL, by_process], summarize=-1
    )
    with tf.control_dependencies([] if alike is None else [alike]):
        return tf.identity(total)


def _num_examples(data: Any) -> tuple[tf.Tensor, int | None]:
    """The number of examples of a share, float64, and the number that tracing knows, if it does."""
    first, *_ = [
        leaf for leaf in tf.nest.flatten(data) if leaf is not None and leaf.shape.rank != 0
    ]
    return tf.cast(rows_of(first), tf.float64), first.shape[0]
