"""The place of a share in its batch, and the checks that all ranks cut the same batches."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.errors import RankMismatchError
from tfdp.keras_adapter.ending import Slot
from tfdp.keras_adapter.step import Step
from tfdp.replicas import Cut, rows_of

# The messages of checks in graphs that all ranks have the same data; each rank's number follows.
ENDED = "Every rank must have as many batches; whether there is one (1) or not (0), by rank:"
UNEQUAL = "Every rank must have the same batches; number of examples in this one, by rank:"

# The slot, at the end of a step, in which the ranks compare their numbers of examples, and the base
# in which these are written there.
COUNTS = "counts"
_BASE = 2**20


def place(step: Step, data: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, int | None]:
    """Returns the place of a replica's examples in the batch.

    Args:
      step: The replica's step.
      data: A `Cut`, or a share whose place is not known; then the replicas tell each other.

    Returns:
      Four float64 scalars: the number of the share's examples, of the examples before them, of
      the examples in the batch, and of the share's rows, which count a stand-in. Then the number of
      rows again as an int, or None if it is not known while the step is traced.

    Raises:
      tf.errors.InvalidArgumentError: The ranks' batches differ in size; raised when the step has
        run.
    """
    if not isinstance(data, Cut):
        examples, rows = _num_examples(data)
        # Each replica puts its number of examples at its own index of a vector of zeros. The sum of
        # the vectors holds all numbers, from which the total and the number before follow.
        (counts,) = step.sum(
            [tf.one_hot(step.replica_id, step.num_replicas, examples, dtype=tf.float64)]
        )
        before, total = tf.reduce_sum(counts[: step.replica_id]), tf.reduce_sum(counts)
        return examples, before, total, examples, rows
    computed, rows = _num_examples(data.rows)
    _, examples, before, total = tf.unstack(tf.cast(data.place[:4], tf.float64))
    if step.replicas.processes.world_size > 1:  # each process has cut a batch that it read itself
        _compare_at_end(step, data.place[3])
    return examples, before, total, computed, rows


@contextlib.contextmanager
def explained(strategy: Any) -> Iterator[None]:
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


def _compare_at_end(step: Step, total: tf.Tensor) -> None:
    """Has it checked, at the end of the step, that all processes have the same `total`.

    Each process knows the number of examples from its own cut. It travels as two numbers, which
    float32, the dtype of nearly all metrics, holds exactly.
    """
    local_size = step.replicas.processes.local_size
    parts = tf.stack([total // _BASE, total % _BASE])[:, tf.newaxis]
    own = parts * tf.one_hot(step.replica_id, step.num_replicas, dtype=tf.int64)

    def compare(sums: Sequence[tf.Tensor]) -> list[tf.Operation]:
        high, low = tf.unstack(tf.cast(sums[0], tf.int64))
        by_process = (high * _BASE + low)[::local_size]
        alike = tf.reduce_all(tf.equal(by_process, total))
        check = tf.debugging.Assert(alike, [UNEQUAL, by_process], summarize=-1)
        return [] if check is None else [check]

    step.ending.put(COUNTS, Slot([tf.cast(own, tf.float32)], compare))


def _num_examples(data: Any) -> tuple[tf.Tensor, int | None]:
    """Returns the number of rows of a share, float64; and as an int, None if not known yet."""
    first, *_ = [
        leaf for leaf in tf.nest.flatten(data) if leaf is not None and leaf.shape.rank != 0
    ]
    return tf.cast(rows_of(first), tf.float64), first.shape[0]
