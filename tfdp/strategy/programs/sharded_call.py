"""The call of a partitioned function on shares of batches, whose lengths tracing may not know."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.data.distributed.row_counts import RowCounts
from tfdp.strategy.programs.argument_sharding import ArgumentSharding
from tfdp.strategy.programs.arguments import Arguments, ArgumentShards
from tfdp.strategy.programs.program_trace import ProgramTrace


def run(trace: ProgramTrace, arguments: Arguments, shares: ArgumentShards) -> list[list[tf.Tensor]]:
    """Runs the program in which leaves of one length are one batch.

    In a graph, of lengths that tracing does not know, it is the one in which all these are one
    batch. Should they differ when the step runs, Python makes and runs another then: most steps
    never need it, and to make it takes as long again.

    Args:
      trace: The traced function.
      arguments: Its arguments.
      shares: What is known of the batches whose shares they are.

    Returns:
      For each output of the program the whole value, in a list.
    """
    cut = arguments.cut_of_shares(shares)

    def as_taken() -> list[list[tf.Tensor]]:
        return _run(trace, cut, shares.lengths, arguments.parts)

    if shares.lengths.are_known:
        return as_taken()

    def otherwise() -> list[list[tf.Tensor]]:
        outputs = trace.source.outputs
        own = functools.partial(_run_eagerly, trace, cut, [len(each) for each in arguments.parts])
        given = [part for parts in arguments.parts for part in parts]
        numbers = shares.lengths.numbers
        dtypes = [numbers.dtype, *(output.dtype for output in outputs)]
        _, *found = tf.py_function(own, [numbers, *given], dtypes)
        for each, output in zip(found, outputs, strict=True):
            each.set_shape(output.shape)
        return [[each] for each in found]

    # All processes have the same lengths.
    found: list[list[tf.Tensor]] = tf.cond(shares.lengths.are_as_taken(), as_taken, otherwise)
    return found


def _run(
    trace: ProgramTrace,
    cut: ArgumentSharding,
    lengths: RowCounts,
    parts: Sequence[Sequence[tf.Tensor]],
) -> list[list[tf.Tensor]]:
    counts = lengths.counts(len(cut.heads), trace.num_replicas)
    return trace.calls(cut).run([counts], *parts)


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
    lengths = RowCounts((), numbers).when_run()
    parts, at = [], 0
    for size in sizes:
        parts.append(list(given[at : at + size]))
        at += size
    found = _run(trace, cut.by(lengths.batches(len(cut.heads))), lengths, parts)
    return [numbers, *(output for (output,) in found)]
