"""Gradients of the largest of a window, computed where the windows' axes are whole.

Of overlapping windows along an axis that is cut, XLA's partitioner (jaxlib 0.10.2) makes another
gradient than of one device, silently: the axis of rows where these are a sequence or an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdp.tpu._jax import ir, make_ir_context, sdy


def with_whole_windows(module: str, mesh: Mapping[str, int]) -> str:
    """Returns the text of a module in which what a `select_and_scatter` slides over is not cut.

    Axes that its windows do not slide over, such as a batch's, lie as they would.

    Args:
      module: The text of a module in StableHLO.
      mesh: The axes of the devices, and how many there are along each.
    """
    if "stablehlo.select_and_scatter" not in module:
        return module
    with make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        found: list[Any] = []

        def note(operation: Any) -> Any:
            if operation.name == "stablehlo.select_and_scatter":
                found.append(operation)
            return ir.WalkResult.ADVANCE

        parsed.operation.walk(note)
        for operation in found:
            _make_whole(operation, mesh)
        return str(parsed)


def _make_whole(operation: Any, mesh: Mapping[str, int]) -> None:
    sizes = ir.DenseI64ArrayAttr(operation.attributes["window_dimensions"])
    axes = ", ".join("{?}" if size == 1 else "{}" for size in sizes)
    devices = ", ".join(f'"{name}"={size}' for name, size in mesh.items())
    layout = ir.Attribute.parse(f"#sdy.sharding<mesh<[{devices}]>, [{axes}]>")
    with ir.InsertionPoint(operation):
        for place in (0, 1):  # what was pooled, and the gradient of what the pooling gave
            operation.operands[place] = sdy.sharding_constraint(operation.operands[place], layout)
    (result,) = operation.results
    with ir.InsertionPoint.after(operation):
        whole = sdy.ShardingConstraintOp(result, layout)
        result.replace_all_uses_except(whole.result, whole.operation)
