"""The passes over a program's module, between TensorFlow's lowering and XLA's compiler.

The module is parsed once, handed from pass to pass, and written once.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfdp.strategy.xla._jax import (
    ir,
    jax,
    main_of,
    make_ir_context,
    operations_of,
    stablehlo,
    stablehlo_module,
)
from tfdp.strategy.xla.alike import inline_cases
from tfdp.strategy.xla.constraints import constrain
from tfdp.strategy.xla.draws import speed_up_draws
from tfdp.strategy.xla.gathers import gather_weights
from tfdp.strategy.xla.loops import drop_copies_of_invariants
from tfdp.strategy.xla.mesh_sharding import Layouts
from tfdp.strategy.xla.precision import Products, raise_precision

# Names in StableHLO, of functions and of what else is called, and those of its own functions.
_NAME = re.compile(r'@(?:"[^"]*"|[\w.$-]+)')
_FUNCTION = re.compile(rf"func\.func (?:private |public )?({_NAME.pattern})")


class Passed(NamedTuple):
    """A module that went through all passes.

    Attributes:
      text: Its text.
      parameters: The shape and dtype of each parameter of its function "main".
      results: The shape and dtype of each result.
      aliases: For each parameter that is written the place of its new value among the results.
      products: Its products and convolutions: see `precision`.
      at_start: The parameters that are gathered as it begins: see `gathers`.
    """

    text: str
    parameters: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    aliases: dict[int, int]
    products: Products
    at_start: frozenset[int]


def passed(
    serialized: bytes,
    layouts: Layouts,
    level: str,
    sharded: Collection[int],
    weights: Mapping[int, str],
) -> Passed:
    """Returns a module after all passes, in the order in which they stand here.

    Args:
      serialized: The HLO module, as TensorFlow serializes it.
      layouts: How arrays lie on the devices that it is compiled for.
      level: The level of products of float32: see `precision.asked`.
      sharded: The places of the sharded parameters.
      weights: Those that are gathered: see `gather_weights`.
    """
    with make_ir_context(), ir.Location.unknown():
        module = stablehlo_module(serialized)  # without copies, which no pass would look through
        parameters, results, aliases = _signature(module)  # that no pass changes
        inline_cases(module)  # of what `alike` made of the step nothing is left to what follows
        products = raise_precision(module, level)  # counts the user's own, before any are added
        shrink_indices(module)
        drop_copies_of_invariants(module)  # before gathers: of what is gathered no copies are kept
        speed_up_draws(module, layouts.platform)  # adds functions
        sharded_results = [aliases[place] for place in sharded if place in aliases]
        at_start = gather_weights(module, weights, sharded_results, layouts.shardy)
        axes, devices = tuple(layouts.mesh), layouts.num_devices
        constrain(
            module, layouts.shardy, axes, devices
        )  # last: to gathers a constraint would be a use of its own
        text = with_numbers_for_names(str(module))  # of all functions, those of draws, too
    return Passed(text, parameters, results, aliases, products, at_start)


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


def _signature(module: Any) -> tuple[Any, Any, dict[int, int]]:
    """Returns a module's parameters and results, and which of these is whose new value."""
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


_LARGEST = np.iinfo(np.int32).max


def shrink_indices(module: Any) -> None:
    """Gives the indices of a module's scatters 32 bits.

    What lies outside of the array, which a scatter leaves out, stays outside: indices are clamped
    to -1 and to the largest number. No array has so many rows.
    """
    for operation in operations_of(module, ["stablehlo.scatter"]):
        _shrink(operation)


def _shrink(scatter: Any) -> None:
    place = (len(scatter.operands) - 1) // 2  # inputs, indices, as many updates as inputs
    indices = scatter.operands[place]
    kind = ir.RankedTensorType(indices.type)
    if str(kind.element_type) != "i64":
        return
    small = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(32))
    with ir.InsertionPoint(scatter):
        least, most = _constant(-1), _constant(_LARGEST)
        scatter.operands[place] = stablehlo.convert(small, stablehlo.clamp(least, indices, most))


def _constant(value: int) -> Any:
    array: Any = np.array(value, np.int64)  # a buffer, as Python's types say from 3.12 on
    return stablehlo.constant(ir.DenseElementsAttr.get(array))
