"""Layouts of operands, where XLA's partitioner would silently compute another result.

Seen with jaxlib 0.10.2 on CPU devices:

- `select_and_scatter`, the gradient of the largest of windows, along a sharded axis, where
  windows overlap: other gradients. What windows slide over is replicated.
- `convolution`, where its kernel's gradient is summed over what several devices have alike, as of
  half of a batch: multiples of it, of depthwise and grouped convolutions for any sharding, of
  others where an image's axis is sharded. Images are replicated; the rows of grouped ones are
  sharded over all devices or replicated.
- `scatter` of the largest or smallest, where several devices have alike what is scattered: updates
  that are left out. All of it is replicated.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tfdp.strategy.xla._jax import ir, operations_of, sdy, stablehlo

# How an axis lies, as Shardy writes it: replicated, or as is best for what is around.
_REPLICATED, _ANY = "{}", "{?}"


def constrain(module: Any, mesh: str, axes: Sequence[str], num_devices: int) -> None:
    """Has the operands of such operations lie as they must.

    Args:
      module: The module.
      mesh: The mesh, as Shardy writes it.
      axes: The names of its axes.
      num_devices: How many devices it has.
    """
    every = ", ".join(f'"{axis}"' for axis in axes)
    for operation in operations_of(module, _CONSTRAINED):
        constrained = _CONSTRAINED[operation.name](operation, f"{{{every}}}", num_devices)
        _constrain(operation, [f"#sdy.sharding<{mesh}, [{axes}]>" for axes in constrained])


def _constrain(operation: Any, layouts: Sequence[str]) -> None:
    """Gives operands, and after these results, their layouts; none are given for none."""
    if not layouts:
        return
    parsed = list(map(ir.Attribute.parse, layouts))
    with ir.InsertionPoint(operation):
        for place, operand in enumerate(list(operation.operands)):
            operation.operands[place] = sdy.sharding_constraint(operand, parsed[place])
    with ir.InsertionPoint.after(operation):
        for result, layout in zip(
            operation.results, parsed[len(operation.operands) :], strict=True
        ):
            constraint = sdy.ShardingConstraintOp(result, layout)
            result.replace_all_uses_except(constraint.result, constraint.operation)


def _of_windows(operation: Any, sharded: str, num_devices: int) -> list[str]:
    sizes = ir.DenseI64ArrayAttr(operation.attributes["window_dimensions"])
    axes = ", ".join(_ANY if size == 1 else _REPLICATED for size in sizes)
    return [axes, axes, "", axes]  # what was pooled, its gradient, the initial value; the result


def _of_convolution(operation: Any, sharded: str, num_devices: int) -> list[str]:
    numbers = stablehlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])
    images, kernel, result = (ir.RankedTensorType(each.type) for each in _all_of(operation))
    rank = len(images.shape)
    if ir.IntegerAttr(operation.attributes["batch_group_count"]).value == 1:
        return [
            ", ".join(_REPLICATED if axis in spatial else _ANY for axis in range(rank))
            for spatial in (
                numbers.input_spatial_dimensions,
                numbers.kernel_spatial_dimensions,
                numbers.output_spatial_dimensions,
            )
        ]
    # The gradient of a kernel of groups, which is summed over the rows of a batch.
    summed = (numbers.input_feature_dimension, numbers.kernel_input_feature_dimension)
    layouts = []
    for shape, rows in zip((images.shape, kernel.shape), summed, strict=True):
        of_rows = sharded if shape[rows] % num_devices == 0 else _REPLICATED
        layouts.append(", ".join(of_rows if axis == rows else _REPLICATED for axis in range(rank)))
    return [*layouts, ", ".join([_REPLICATED] * len(result.shape))]


def _of_scatter(operation: Any, sharded: str, num_devices: int) -> list[str]:
    kinds = {each.operation.name for each in operation.regions[0].blocks[0].operations}
    if kinds <= {"stablehlo.add", "stablehlo.return"}:
        return []
    ranks = [len(ir.RankedTensorType(each.type).shape) for each in _all_of(operation)]
    return [", ".join([_REPLICATED] * rank) for rank in ranks]


def _all_of(operation: Any) -> list[Any]:
    return [*operation.operands, *operation.results]


_CONSTRAINED: dict[str, Callable[[Any, str, int], list[str]]] = {
    "stablehlo.select_and_scatter": _of_windows,
    "stablehlo.convolution": _of_convolution,
    "stablehlo.scatter": _of_scatter,
}
