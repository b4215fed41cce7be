"""The lowering of a traced program of one device to StableHLO, by TensorFlow."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.strategy.programs import tracing
from tfdp.strategy.xla import host_parts, refusals, substitutes
from tfdp.strategy.xla._jax import jax
from tfdp.strategy.xla._tensorflow import hlo
from tfdp.strategy.xla.alike import lowered_once
from tfdp.strategy.xla.device_variables import variable_of
from tfdp.strategy.xla.host_parts import Given, HostPart
from tfdp.strategy.xla.passes import passed
from tfdp.strategy.xla.precision import Products


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program in StableHLO: a function of its arguments and of what it captures, in this order.

    Its results are its outputs, and after these the new values of the variables that it writes.

    Attributes:
      module: The text of the module, whose function is "main".
      parameters: The shape and dtype of each parameter.
      results: The shape and dtype of each result.
      captured: What it captures: handles of variables, and tensors.
      updates: For each captured variable that it writes its place in `captured`, and that of its
        new value among the results.
      structure: The structure of its outputs, with a tensor where there is a result.
      num_arguments: The number of its arguments.
      seconds: The seconds that tracing and lowering took.
      products: Its products and convolutions: see `precision`.
      at_start: The places of the parameters that are gathered as it begins: see `gathers`.
    """

    module: str
    parameters: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    captured: tuple[tf.Tensor, ...]
    updates: dict[int, int]
    structure: Any
    num_arguments: int
    seconds: dict[str, float]
    products: Products
    at_start: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Traced:
    """A program as it was traced, for arguments of fixed sizes.

    Attributes:
      strategy: The strategy in whose scope the trace makes variables.
      source: The program, of its arguments.
      of_devices: What the devices compute: a function of sizes, and of what they are given.
      host: What the host computes of the arguments to give it to the devices; None: nothing.
      seconds: The seconds that tracing took.
    """

    strategy: tf.distribute.Strategy
    source: tf.types.experimental.ConcreteFunction
    of_devices: Callable[[tuple[Any, ...]], Any]
    host: HostPart | None
    seconds: float

    def given(self, arguments: Sequence[tf.Tensor]) -> Given:
        """Returns what the devices are given of the arguments; any thread may ask."""
        return Given(arguments) if self.host is None else self.host(arguments)


def traced(
    strategy: tf.distribute.Strategy,
    function: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
) -> Traced:
    """Traces a function as on one device.

    Args:
      strategy: The strategy in whose scope the trace makes variables.
      function: The function, of flat tensors.
      specs: Their shapes, all known, and dtypes.

    Raises:
      PartitionError: It has what neither devices nor the host before them compute. Names the
        operation and the user's line.
    """
    compiled = tf.function(function, jit_compile=True)
    begun = time.perf_counter()
    with _tracing(strategy):
        source = compiled.get_concrete_function(*specs)
        refusals.check_trace(source)
        parts = host_parts.split(source, specs)
    seconds = time.perf_counter() - begun
    if parts is None:
        return Traced(strategy, source, lambda _: compiled, None, seconds)
    host, of_devices = parts

    def of_sizes(sizes: tuple[Any, ...]) -> Any:
        own = functools.partial(of_devices, sizes)
        return tf.function(own, jit_compile=True, autograph=False)

    return Traced(strategy, source, of_sizes, host, seconds)


def lowered(
    program: Traced,
    specs: Sequence[tf.TensorSpec],
    sizes: tuple[Any, ...] = (),
    precision: str = "DEFAULT",
) -> Lowered:
    """Lowers what the devices compute of a program.

    Args:
      program: The program.
      specs: What they are given.
      sizes: What they are told besides.
      precision: The level of products of float32: see `precision.asked`.

    Raises:
      PartitionError: It has what cannot be lowered. Names the operation and the user's line.
    """
    begun = time.perf_counter()
    graph = program.source.graph
    with contextlib.ExitStack() as kept:
        kept.enter_context(_tracing(program.strategy))  # else it would be traced once more
        source = program.of_devices(sizes).get_concrete_function(*specs)
        source = kept.enter_context(substitutes.written(source, specs))
        captured = source.captured_inputs
        refusals.check_captured(captured, graph)
        with refusals.explained(graph), lowered_once(source.function_def) as name:
            serialized = hlo(name, specs, captured)
    refusals.check_lowered(serialized, graph)
    layouts = program.strategy.extended.layouts
    layouts.settle(program.source, program.strategy.extended.variables.values())
    sharded = {
        place: variable
        for place, tensor in enumerate(captured, len(specs))
        if (variable := variable_of(tensor)) is not None
        and not layouts.of_variable(variable).is_fully_replicated
    }
    weights = {
        place: axes
        for place, variable in sharded.items()
        if variable.is_weight and (axes := layouts.gathered(variable)) is not None
    }
    found = passed(serialized, layouts, precision, sharded, weights)
    outputs = [leaf for leaf in source.outputs if leaf is not None]
    _check_order([*specs, *captured], found.parameters, outputs, found.results, found.aliases)
    seconds = {"trace": program.seconds, "lower": time.perf_counter() - begun}
    return Lowered(
        found.text,
        found.parameters,
        found.results,
        tuple(captured),
        {parameter - len(specs): result for parameter, result in found.aliases.items()},
        program.source.structured_outputs,
        len(specs),
        seconds,
        found.products,
        found.at_start,
    )


@contextlib.contextmanager
def _tracing(strategy: tf.distribute.Strategy) -> Iterator[None]:
    as_on_one_device = tracing.as_on_one_device(strategy, sizes_are_fixed=True)
    with tracing.outside_of_graphs(), as_on_one_device:
        yield


def _check_order(
    given: Sequence[Any],
    parameters: Sequence[Any],
    outputs: Sequence[tf.Tensor],
    results: Sequence[Any],
    aliases: dict[int, int],
) -> None:
    """Checks that a lowered program takes and gives what the traced one does, in its order."""
    assert len(given) == len(parameters), "each argument and captured tensor is a parameter"
    assert len(outputs) + len(aliases) == len(results), "results are outputs and new values"
    assert sorted(aliases.values()) == list(range(len(outputs), len(results)))
    for each, parameter in zip(given, parameters, strict=True):
        if each.dtype != tf.resource:
            assert np.dtype(each.dtype.as_numpy_dtype) == parameter.dtype
            assert each.shape.is_compatible_with(parameter.shape)
    for parameter, result in aliases.items():
        assert parameters[parameter] == results[result], "a variable keeps its shape"
