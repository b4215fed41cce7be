"""The call of a program by a graph of the host's: `strategy.run` in a `tf.function`.

The step is traced with the graph around it, once, as on one device. In its place the graph has an
operation that calls the program, which is compiled for the shapes that batches then have.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.errors import PartitionError
from tfdp.strategy.programs import tracing
from tfdp.strategy.programs.function_outputs import FunctionOutputs, marked, unrecorded
from tfdp.strategy.xla import refusals
from tfdp.strategy.xla._tensorflow import GraphOrParentsInXlaContext
from tfdp.strategy.xla.call_arguments import arguments_of
from tfdp.strategy.xla.compiled import Compiled, on_host
from tfdp.strategy.xla.device_variables import variable_of


def called(
    strategy: tf.distribute.Strategy,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Returns what a function returns, as tensors of the graph that is being traced.

    Args:
      strategy: The strategy.
      function: The function, for one device.
      args: Its arguments.
      kwargs: Those by name.

    Raises:
      PartitionError: It has what XLA cannot compile. Where the graph does not know the shapes of
        its batches, what cannot be lowered for them is an error when the graph runs.
      RuntimeError: The graph is compiled itself, or is one of TensorFlow 1.
    """
    _check_graph(tf.compat.v1.get_default_graph())
    arguments = arguments_of(args, kwargs)
    given, specs = [parts[0] for parts in arguments.parts], arguments.fixed()
    with tracing.as_on_one_device(strategy, sizes_are_fixed=True):
        source = tf.function(arguments.function(function)).get_concrete_function(*specs)
        refusals.check_trace(source)
    around = [each for each in source.captured_inputs if tf.is_symbolic_tensor(each)]
    name = getattr(function, "__name__", "A function")
    program = Compiled(strategy, _of_all(source, len(specs), name))
    whole = [*specs, *(tf.TensorSpec(each.shape, each.dtype) for each in around)]
    if all(spec.shape.is_fully_defined() for spec in whole):
        try:
            program.ahead(*whole)  # what cannot be lowered is an error here, and not when it runs
        except PartitionError:
            raise
        except ValueError:
            pass  # the host must see a batch first

    def inputs() -> list[tf.Tensor]:
        weights = map(variable_of, source.captured_inputs)
        values = [each.value() for each in weights if each is not None and each.trainable]
        return [*given, *around, *values]

    outputs = unrecorded(lambda: _operation(program, [*given, *around], source), inputs)
    return FunctionOutputs(source.structured_outputs).packed(outputs)


def _operation(
    program: Compiled, given: Sequence[tf.Tensor], source: tf.types.experimental.ConcreteFunction
) -> list[tf.Tensor]:
    """Returns the outputs of an operation that calls a program.

    It waits for what reads or writes the program's variables before it, and what does so later
    waits for it: it is given their handles. By another one all such operations keep their order,
    which must be the same in all processes.
    """

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return list(map(on_host, program.run([(tensors[: len(given)], {})])))

    handles = [each for each in source.captured_inputs if each.dtype == tf.resource]
    dtypes = [output.dtype for output in source.outputs]
    made = tf.py_function(call, [*given, *handles, _order()], dtypes)
    outputs = [marked(output) for output in made] if dtypes else []
    for each, output in zip(outputs, source.outputs, strict=True):
        each.set_shape(output.shape)
    return outputs


def _of_all(
    source: tf.types.experimental.ConcreteFunction, count: int, name: str
) -> Callable[..., list[tf.Tensor]]:
    """Returns a traced function of its arguments and, after them, of what it has of its graph.

    Args:
      source: The function.
      count: The number of its arguments.
      name: What warnings call it.
    """

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        own, around = tensors[:count], iter(tensors[count:])
        captured = [
            next(around) if tf.is_symbolic_tensor(each) else each for each in source.captured_inputs
        ]
        dtypes = [output.dtype for output in source.outputs]
        found = tf.raw_ops.StatefulPartitionedCall(args=[*own, *captured], Tout=dtypes, f=source)
        return list(found) if dtypes else []

    call.__name__ = name.strip("<>")  # AutoGraph would look for the source of a lambda
    return call


def _check_graph(graph: tf.Graph) -> None:
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise RuntimeError(
            "Under XLAStrategy `strategy.run` must be called eagerly or in a `tf.function`, but is "
            "in a graph of TensorFlow 1. Take `tf.compat.v1.disable_eager_execution` out."
        )
    if GraphOrParentsInXlaContext(graph):
        raise RuntimeError(
            "A `tf.function` around `strategy.run` must not be compiled itself, but has "
            "`jit_compile=True`. Leave that out: what `strategy.run` is given is compiled."
        )


@functools.cache
def _order() -> tf.Tensor:
    """Returns the resource by which operations that call programs wait for each other."""
    with tf.init_scope(), tf.device("/cpu:0"):
        return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name="tfdp_xla_runs")
