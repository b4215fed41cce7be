"""A program traced once, as on one device, of which the programs of replicas are made."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.base.recording import Recorder
from tfdp.strategy._tensorflow_programs import container_of_copy, variable_accessed
from tfdp.strategy.programs import captured
from tfdp.strategy.programs.function_outputs import FunctionOutputs
from tfdp.strategy.programs.program_context import ProgramContext


class ProgramOptions(NamedTuple):
    """What a program is asked for.

    Attributes:
      keep_rows: Whether outputs that are sharded are given as the local replicas' rows.
      jit_compile: Whether XLA compiles what lies between its collectives.
      recorder: What records its steps; None: nothing does.
      may_loop: Whether a graph that calls it may be a loop's body.
      compares: Whether the processes compare what they are given.
    """

    keep_rows: bool
    jit_compile: bool
    recorder: Recorder | None = None
    may_loop: bool = True
    compares: bool = False


class ProgramTrace:
    """A program, traced once.

    Args:
      context: Traces it, and has the replicas that run it.
      function: The program, of flat tensors.
      specs: Their specifications.
      options: What its programs are asked for.
      names: What the tensors are called.

    Attributes:
      context: See above, as `options`, `names` and `specs`.
      source: The traced program.
      outputs: What it returns.
      captured: What it captures, as the local replicas have it.
      hides_states: Whether it draws numbers from states of its own: see `_hides_states`.
    """

    def __init__(
        self,
        context: ProgramContext,
        function: Callable[..., Any],
        specs: Sequence[tf.TensorSpec],
        options: ProgramOptions,
        names: Sequence[str] = (),
    ) -> None:
        self.context, self.options, self.names = context, options, names
        self.specs = tuple(specs)
        traced = tf.function(function)
        with context.tracing():
            self.source = traced.get_concrete_function(*specs)
        self.outputs = FunctionOutputs(self.source.structured_outputs)
        self.captured = captured.captured_by(self.source.captured_inputs, context.devices)
        self.hides_states = _hides_states(self.source.graph)

    def values(self) -> list[tf.Tensor]:
        """Returns the values of the weights that the program reads, for tapes to see."""
        found = []
        for variable in self.source.graph.variables:
            if variable.trainable and (variable.dtype.is_floating or variable.dtype.is_complex):
                reference = getattr(variable.handle, container_of_copy, None)
                container = reference() if callable(reference) else None
                found.append(tf.convert_to_tensor(variable if container is None else container))
        return found

    def watch(self) -> None:
        """Says to the graph that calls the program that it reads the program's weights."""
        for variable in self.source.graph.variables:
            variable_accessed(variable)

    def takes(self, shapes: Sequence[tf.TensorShape]) -> bool:
        """Returns whether the traced program takes all tensors of which this much is known."""
        pairs = zip(self.specs, shapes, strict=True)
        return all(shape.is_subtype_of(spec.shape) for spec, shape in pairs)


def _hides_states(graph: tf.Graph) -> bool:
    """Returns whether operations draw numbers from states of their own, as those of `tf.random` do.

    Each program has such states of its own, so batches of all lengths must run in one program: in
    another the numbers would begin anew.
    """
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for each in definition.library.function for n in each.node_def)]
    return any("seed2" in node.attr for node in nodes)
