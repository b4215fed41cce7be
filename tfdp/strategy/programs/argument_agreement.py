"""The check that all processes gave a call the same arguments.

Each has the whole of what it is given, and takes its rows. The numbers travel with the first sum of
the program, where a process has one replica.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.communication.replicas import batch_fingerprints, data_mismatch
from tfdp.strategy.programs.argument_sharding import ArgumentSharding
from tfdp.strategy.programs.captured import Captured, value_of
from tfdp.strategy.programs.program_context import ProgramContext

# Whole numbers that float32 holds, in which most programs sum something.
_BITS = 24


class ArgumentAgreement:
    """The numbers that processes tell of the calls of one program.

    Args:
      source: The traced function.
      captured: What it captures.
      sharding: How its arguments are sharded; each process has shards of its own.
      called: What they are called.
      context: Knows the processes.

    Attributes:
      names: What the numbers are of.
    """

    def __init__(
        self,
        source: tf.types.experimental.ConcreteFunction,
        captured: Captured,
        sharding: ArgumentSharding,
        called: Sequence[str],
        context: ProgramContext,
    ) -> None:
        self._which = [index for index, in_parts in enumerate(sharding.in_parts) if not in_parts]
        self._outside = captured.outside
        variables = {id(each.handle): f"variable `{each.name}`" for each in source.graph.variables}
        outside = [
            variables.get(id(each), "a tensor from outside of the function")
            for each in self._outside
        ]
        self.names = [data_mismatch.PROGRAM, *(called[index] for index in self._which), *outside]
        self._context = context
        self._process = context.first_rank // len(context.devices)
        self._spec = tf.TensorSpec([context.processes.world_size, len(self.names)], tf.float32)

    @property
    def of_program(self) -> tuple[tf.TensorSpec, Sequence[str]] | None:
        """What the program compares, see `partition`; None: the processes do so before it begins.

        Where a process has several replicas, one that finds a difference would end the others' sum,
        and those of other processes would wait for it.
        """
        return (self._spec, self.names) if len(self._context.devices) == 1 else None

    def row(self, arguments: Sequence[Sequence[tf.Tensor]], program: int) -> tf.Tensor:
        """Returns the numbers of this process in the matrix of all, and zeros for the others'.

        Args:
          arguments: The arguments of a call.
          program: A number that tells the program from others.
        """
        place, row = [[self._process]], self._numbers(arguments, program)
        with tf.device("CPU:0"):
            return tf.scatter_nd(place, [tf.cast(row, tf.float32)], self._spec.shape)

    def checks(self, arguments: Sequence[Sequence[tf.Tensor]], program: int) -> list[tf.Operation]:
        """Returns what fails unless all processes tell the same, see `row`."""
        by_rank = self._context.of_all_processes(self._numbers(arguments, program))
        return data_mismatch.checks(by_rank, self.names)

    def _numbers(self, arguments: Sequence[Sequence[tf.Tensor]], program: int) -> tf.Tensor:
        given = [arguments[index][0] for index in self._which] + list(map(value_of, self._outside))
        with tf.device("CPU:0"):
            own = tf.constant([program], tf.int64)
            if not given:
                return own
            found = batch_fingerprints.of_leaves(given) // 2 ** (batch_fingerprints.BITS - _BITS)
            return tf.concat([own, found], 0)
