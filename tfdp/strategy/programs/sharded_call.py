"""The call of a partitioned function on shares of batches, whose lengths tracing may not know."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.strategy.programs.argument_sharding import ArgumentSharding
from tfdp.strategy.programs.program_trace import ProgramTrace
from tfdp.strategy.programs.row_counts import RowCounts


def run(
    trace: ProgramTrace,
    cut: ArgumentSharding,
    counts: RowCounts,
    parts: Sequence[Sequence[tf.Tensor]],
) -> list[list[tf.Tensor]]:
    """Runs the program in which leaves of one length are one batch.

    In a graph, of lengths that tracing does not know, it is the one in which all these are one
    batch. Should they differ when the step runs, Python makes and runs another then: most steps
    never need it, and to make it takes as long again.

    Args:
      trace: The traced function.
      cut: How its arguments are cut.
      counts: What is known of the batches whose shares they are.
      parts: The shares that the local replicas have of each argument.

    Returns:
      For each output of the program the whole value, in a list.
    """

    def as_taken() -> list[list[tf.Tensor]]:
        given = counts.counts(len(cut.heads), trace.num_replicas)
        return trace.calls(cut).run([given], *parts)

    if counts.are_known:
        return as_taken()

    def otherwise() -> list[list[tf.Tensor]]:
        outputs = trace.source.outputs
        own = functools.partial(_run_eagerly, trace, cut, list(map(len, parts)))
        given = [part for each in parts for part in each]
        dtypes = [counts.numbers.dtype, *(output.dtype for output in outputs)]
        _, *found = tf.py_function(own, [counts.numbers, *given], dtypes)
        for each, output in zip(found, outputs, strict=True):
            each.set_shape(output.shape)
        return [[each] for each in found]

    # All processes have the same lengths.
    found: list[list[tf.Tensor]] = tf.cond(counts.are_as_taken(), as_taken, otherwise)
    return found


def _run_eagerly(
    trace: ProgramTrace,
    cut: ArgumentSharding,
    sizes: Sequence[int],
    numbers: tf.Tensor,
    *given: tf.Tensor,
) -> list[Any]:
    """Runs the program for the lengths that the leaves have.

    Args:
      trace: The traced function.
      cut: The cut of the other program.
      sizes: The numbers of parts of the arguments.
      numbers: The lengths.
      *given: The parts.

    Returns:
      The lengths, as TensorFlow wants one result at least, and the outputs.
    """
    counts, rest = RowCounts((), numbers).when_run(), iter(given)
    parts = [list(itertools.islice(rest, size)) for size in sizes]
    found = run(trace, cut.by(counts.batches(len(cut.heads))), counts, parts)
    return [numbers, *(output for (output,) in found)]
