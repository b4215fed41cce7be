"""The calls of a traced program: which of its programs takes the arguments of each."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.strategy.programs.argument_sharding import ArgumentLayouts, ArgumentSharding
from tfdp.strategy.programs.arguments import Arguments
from tfdp.strategy.programs.program_call import ProgramCall
from tfdp.strategy.programs.program_trace import ProgramTrace
from tfdp.strategy.programs.uneven_batches import RowCounts


class TraceCalls:
    """The calls of one trace, by as many programs as there are ways to shard its arguments.

    Args:
      trace: The trace.

    Attributes:
      trace: The trace.
    """

    def __init__(self, trace: ProgramTrace) -> None:
        self.trace = trace
        self._made: dict[ArgumentSharding, ProgramCall] = {}

    def by(self, sharding: ArgumentSharding) -> ProgramCall:
        """Returns the call of the program for arguments that are sharded in one way."""
        if self.trace.hides_states or self.trace.context.may_skip:
            sharding = sharding._replace(may_be_empty=True)
        if sharding not in self._made:
            with tf.init_scope():
                given = ArgumentLayouts.of(sharding, self.trace.specs)
                self._made[sharding] = ProgramCall(self.trace, given)
        return self._made[sharding]

    def run(self, arguments: Arguments, sharding: ArgumentSharding) -> list[list[tf.Tensor]]:
        """Runs the program in which arguments of one length are one batch.

        In a graph that does not know the lengths they are compared when it runs. Should whole
        arguments differ, all of them are given whole to each replica.

        Args:
          arguments: The arguments, which are no shares.
          sharding: How they are sharded.

        Returns:
          For each output a list: the whole value, or the rows of each replica.
        """
        calls = self.by(sharding)
        if arguments.lengths_are_known:
            return calls.run(*arguments.parts)
        if sharding.whole() == sharding:
            fits = tf.debugging.Assert(
                arguments.have_equal_lengths(sharding),
                [
                    "The replicas' parts of all arguments must have equal lengths in a graph. Call "
                    "the partitioned function outside of it, or give it whole batches."
                ],
            )
            with tf.control_dependencies([fits]):
                return calls.run(*[list(map(tf.identity, parts)) for parts in arguments.parts])
        whole = self.by(sharding.whole())
        found: list[list[tf.Tensor]] = tf.cond(
            arguments.have_equal_lengths(sharding),
            lambda: calls.run(*arguments.parts),
            lambda: whole.run(*arguments.parts),
        )
        return found

    def run_on_shares(
        self, sharding: ArgumentSharding, counts: RowCounts, parts: Sequence[Sequence[tf.Tensor]]
    ) -> list[list[tf.Tensor]]:
        """Runs the program in which leaves of one length are one batch.

        In a graph, of lengths that tracing does not know, it is the one in which all these are one
        batch. Should they differ when the step runs, Python makes and runs another then: most steps
        never need it, and to make it takes as long again.

        Args:
          sharding: How the arguments are sharded.
          counts: What is known of the batches whose shares they are.
          parts: The shares that the local replicas have of each argument.

        Returns:
          For each output of the program the whole value, in a list.
        """

        def as_taken() -> list[list[tf.Tensor]]:
            given = counts.counts(len(sharding.heads), self.trace.context.num_replicas)
            return self.by(sharding).run([given], *parts)

        if counts.are_known:
            return as_taken()

        def otherwise() -> list[list[tf.Tensor]]:
            outputs = self.trace.source.outputs
            own = functools.partial(self._run_shares_eagerly, sharding, list(map(len, parts)))
            given = [part for each in parts for part in each]
            dtypes = [counts.numbers.dtype, *(output.dtype for output in outputs)]
            _, *found = tf.py_function(own, [counts.numbers, *given], dtypes)
            for each, output in zip(found, outputs, strict=True):
                each.set_shape(output.shape)
            return [[each] for each in found]

        # All processes have the same lengths.
        found: list[list[tf.Tensor]] = tf.cond(counts.are_as_taken(), as_taken, otherwise)
        return found

    def _run_shares_eagerly(
        self,
        sharding: ArgumentSharding,
        sizes: Sequence[int],
        numbers: tf.Tensor,
        *given: tf.Tensor,
    ) -> list[Any]:
        """Runs the program for the lengths that the leaves have.

        Args:
          sharding: The sharding of the other program.
          sizes: The numbers of parts of the arguments.
          numbers: The lengths.
          *given: The parts.

        Returns:
          The lengths, as TensorFlow wants one result at least, and the outputs.
        """
        counts, rest = RowCounts((), numbers).when_run(), iter(given)
        parts = [list(itertools.islice(rest, size)) for size in sizes]
        sharding = sharding.by(counts.batches(len(sharding.heads)))
        return [numbers, *(output for (output,) in self.run_on_shares(sharding, counts, parts))]
