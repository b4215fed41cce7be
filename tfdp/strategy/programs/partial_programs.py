"""Programs that replicas of `strategy.run` call, each in its own trace, with partial values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.communication.collectives import data_mismatch
from tfdp.partition import PARTIAL, REPLICATED
from tfdp.strategy._tensorflow_programs import stop_recording
from tfdp.strategy.programs.argument_sharding import ArgumentLayouts, ArgumentSharding
from tfdp.strategy.programs.program_call import ProgramCall
from tfdp.strategy.programs.program_context import ProgramContext
from tfdp.strategy.programs.program_trace import ProgramOptions, ProgramTrace

# By how much the squares of norms may differ that processes compute of one batch.
_ROUNDING = 0.01

# The attribute of a graph with the programs that it calls, which must live as long as it does.
_CALLED = "_tfdp_programs"


class PartialProgram:
    """A function that is written for one device, of tensors of which each replica has a partial.

    It is traced once, and not run.

    Args:
      context: Has the replicas.
      function: The function of flat tensors.
      specs: Their specifications.
      are_partials: Of each whether replicas have partials of it; else all have the whole.
    """

    def __init__(
        self,
        context: ProgramContext,
        function: Callable[..., Any],
        specs: Sequence[tf.TensorSpec],
        are_partials: Sequence[bool],
    ) -> None:
        self._context = context
        options = ProgramOptions(keep_rows=False, jit_compile=False)
        trace = ProgramTrace(context, function, specs, options)
        self._outputs = trace.outputs
        sharding = ArgumentSharding((None,) * len(specs), (True,) * len(specs), may_be_empty=False)
        layouts = [PARTIAL if is_partial else REPLICATED for is_partial in are_partials]
        with tf.init_scope():
            self._call = ProgramCall(trace, ArgumentLayouts(sharding, specs, layouts, {}))

    def on_replica(self, index: int, tensors: Sequence[tf.Tensor]) -> Any:
        """Writes one replica's call into the graph that is being built; all replicas must.

        Args:
          index: Its number among the local replicas.
          tensors: What it has.

        Returns:
          What the function returns: whole tensors.
        """
        self._keep()
        return self._outputs.packed(self._call.on_replica(index, tensors))

    def on_all(self, parts: Sequence[Sequence[tf.Tensor]]) -> Any:
        """Runs it on all local replicas.

        Args:
          parts: Of each tensor what each local replica has.
        """
        return self._outputs.packed([each[0] for each in self._call.run(*map(list, parts))])

    def on_one(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Runs it on all local replicas, outside of replica functions.

        Args:
          tensors: Whole tensors; of several processes the first one's hold.

        Raises:
          RankMismatchError: Those of other processes are others by more than rounding; in a graph
            an `InvalidArgumentError` says so.
        """
        if not tf.executing_eagerly():
            self._keep()
        with (
            stop_recording(),
            data_mismatch.explained(self._context.processes.rank),
            tf.control_dependencies(self._checks(tensors)),
        ):
            given = list(map(self._context.of_first, tensors))
            return self.on_all([[each] * len(self._context.devices) for each in given])

    def _checks(self, tensors: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns what fails if the processes have tensors of other norms."""
        if self._context.processes.world_size == 1:
            return []
        numbers = [each for each in tensors if each.dtype.is_floating or each.dtype.is_complex]
        squares = [tf.reduce_sum(tf.cast(tf.abs(each), tf.float64) ** 2) for each in numbers]
        by_rank = self._context.of_all_processes(tf.reduce_sum(squares)[tf.newaxis])
        differ = tf.abs(by_rank - by_rank[:1]) > _ROUNDING * by_rank[:1]
        return data_mismatch.checks(tf.cast(differ, tf.int64), [data_mismatch.GRADIENTS])

    def _keep(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        while getattr(getattr(graph, "outer_graph", None), "building_function", False):
            graph = graph.outer_graph
        setattr(graph, _CALLED, [*getattr(graph, _CALLED, ()), self])
