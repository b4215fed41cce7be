"""Draws whose state is computed once, and not for each number that is drawn.

TensorFlow scrambles the seed of a draw in ten rounds on single numbers. XLA's compiler (jaxlib
0.10.2) would make one loop of these and of the draw, and so scramble in each of its iterations: a
draw of 16 thousand numbers on a CPU took 30 times as long.
"""

from __future__ import annotations

from typing import Any

from tfdp.xla._jax import ir, make_ir_context, stablehlo

_DRAW = "stablehlo.rng_bit_generator"


def with_states_apart(module: str) -> str:
    """Returns the text of a module in which the state of each draw is computed before the draw.

    Args:
      module: The text of a module in StableHLO.
    """
    if _DRAW not in module:
        return module
    with make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        found: list[Any] = []

        def note(operation: Any) -> Any:
            if operation.name == _DRAW:
                found.append(operation)
            return ir.WalkResult.ADVANCE

        parsed.operation.walk(note)
        for operation in found:
            with ir.InsertionPoint(operation):
                operation.operands[0] = stablehlo.optimization_barrier([operation.operands[0]])
        return str(parsed)
