"""The lowering of a traced program of one device to StableHLO, by TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp import keras_adapter
from tfdp.strategy import tracing
from tfdp.xla import host_parts, refusals, stand_ins
from tfdp.xla._jax import hlo_text, ir, jax, make_ir_context, stablehlo_text
from tfdp.xla.draws import with_fast_draws
from tfdp.xla.host_parts import Given, HostPart
from tfdp.xla.loops import without_copies_of_invariants
from tfdp.xla.precision import Products, with_precision
from tfdp.xla.scatters import with_small_indices

# Names in StableHLO, of functions and of what else is called, and those of its own functions.
_NAME = re.compile(r'@(?:"[^"]*"|[\w.$-]+)')
_FUNCTION = re.compile(rf"func\.func (?:private |public )?({_NAME.pattern})")


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
        parts = host_parts.cut(source, specs)
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
    compiled = program.of_devices(sizes)
    with contextlib.ExitStack() as kept:
        kept.enter_context(_tracing(program.strategy))  # else it would be traced once more
        source = compiled.get_concrete_function(*specs)
        compiled, source = kept.enter_context(stand_ins.written(compiled, source, specs))
        captured = source.captured_inputs
        refusals.check_captured(captured, graph)
        with refusals.explained(graph):
            lowering = compiled.experimental_get_compiler_ir(*specs)
            serialized = lowering(stage="hlo_serialized")
    text = hlo_text(serialized)
    refusals.check_lowered(text, graph)
    module, products = with_precision(stablehlo_text(serialized), precision)
    module = without_copies_of_invariants(with_small_indices(module))
    module = with_fast_draws(module, program.strategy.extended.layouts.platform)
    module = with_numbers_for_names(module)
    parameters, results, aliases = _signature(module)
    outputs = [leaf for leaf in source.outputs if leaf is not None]
    _check_order([*specs, *captured], parameters, outputs, results, aliases)
    seconds = {"trace": program.seconds, "lower": time.perf_counter() - begun}
    return Lowered(
        module,
        parameters,
        results,
        tuple(captured),
        {parameter - len(specs): result for parameter, result in aliases.items()},
        program.source.structured_outputs,
        len(specs),
        seconds,
        products,
    )


def with_numbers_for_names(module: str) -> str:
    """Returns a module's text with the order of its functions in the place of their names.

    TensorFlow names modules and functions by the number of those that it has traced before. So the
    names differ between processes of which one alone draws what was trained, and between a process
    and the one that goes on after it, which would find nothing in JAX's compilation cache.

    >>> with_numbers_for_names("module @step_7 {func.func @main() {} func.func @body_9() {} }")
    'module @program {func.func @main() {} func.func @function_1() {} }'
    """
    numbers = {name: f"@function_{order}" for order, name in enumerate(_FUNCTION.findall(module))}
    numbers["@main"] = "@main"
    module = re.sub("^module @[^ ]+", "module @program", module, count=1, flags=re.MULTILINE)
    return _NAME.sub(lambda name: numbers.get(name[0], name[0]), module)


@contextlib.contextmanager
def _tracing(strategy: tf.distribute.Strategy) -> Iterator[None]:
    as_on_one_device = tracing.as_on_one_device(strategy)
    with tracing.outside_of_graphs(), as_on_one_device, keras_adapter.of_fixed_sizes():
        yield


def main_of(module: Any) -> Any:
    """Returns the function "main" of a parsed module."""
    return next(op for op in module.body.operations if ir.StringAttr(op.sym_name).value == "main")


def _signature(text: str) -> tuple[Any, Any, dict[int, int]]:
    """Returns a module's parameters and results, and which of these is whose new value."""
    with make_ir_context():
        module = ir.Module.parse(text)
        kind = main_of(module).type
        attributes = module.operation.attributes
        aliases = {}
        if "mhlo.input_output_alias" in attributes:
            for each in ir.ArrayAttr(attributes["mhlo.input_output_alias"]):
                alias = ir.DictAttr(ir.DictAttr(each)["alias"])
                (result,) = ir.DenseI64ArrayAttr(ir.DictAttr(each)["output_index"]) or (0,)
                aliases[ir.IntegerAttr(alias["parameter_number"]).value] = int(result)
        return (
            tuple(map(_shape_and_dtype, kind.inputs)),
            tuple(map(_shape_and_dtype, kind.results)),
            aliases,
        )


_DTYPES = {"i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
_DTYPES |= {"complex<f32>": "complex64", "complex<f64>": "complex128"}


def _shape_and_dtype(kind: Any) -> jax.ShapeDtypeStruct:
    tensor = ir.RankedTensorType(kind)
    name = str(tensor.element_type)
    if name not in _DTYPES:
        name = name.replace("ui", "uint") if name.startswith("ui") else name.replace("i", "int")
    return jax.ShapeDtypeStruct(tuple(tensor.shape), jax.numpy.dtype(_DTYPES.get(name, name)))


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
