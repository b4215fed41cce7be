"""Draws by Philox, as XLA computes them, in programs that do so fast.

They are those of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3:
four numbers of a counter and a key, by ten rounds of multiplications. Two things that XLA's
compiler (jaxlib 0.10.2) makes of them are slow:

- TensorFlow scrambles the seed of a draw in ten rounds on single numbers. The compiler would make
  one loop of these and of the draw, and so scramble in each of its iterations: a draw of 16
  thousand numbers on a CPU took 60 times as long. The draw's state is computed before it.
- On CPUs each number is computed by itself, though four come of one counter: five times as long as
  rounds on all counters at a time, which are written here.
"""

import functools
from typing import Any

import numpy as np

from tfdp.strategy.xla._jax import func, ir, jax, merge_mlir_modules, operations_of, stablehlo

_DRAW = "stablehlo.rng_bit_generator"
_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85  # what is added to a key's halves in each round


def speed_up_draws(module: Any, platform: str) -> None:
    """Makes a module's draws, of the same numbers, fast.

    Args:
      module: The module.
      platform: The kind of the devices: see `Layouts`.
    """
    for operation in operations_of(module, [_DRAW]):
        with ir.InsertionPoint(operation):
            operation.operands[0] = stablehlo.optimization_barrier([operation.operands[0]])
            if platform == "cpu" and _is_in_words(operation):
                _replace(module, operation)


def _is_in_words(draw: Any) -> bool:
    """Returns whether a draw is of numbers of 32 bits by Philox."""
    kind = ir.RankedTensorType(draw.results[1].type)
    is_philox = "PHILOX" in str(draw.attributes["rng_algorithm"])
    has_counter = ir.RankedTensorType(draw.operands[0].type).shape == [3]
    return is_philox and has_counter and str(kind.element_type) == "ui32"


def _replace(module: Any, draw: Any) -> None:
    kind = ir.RankedTensorType(draw.results[1].type)
    count = int(np.prod(kind.shape, dtype=np.int64))
    name = merge_mlir_modules(module, "draw", ir.Module.parse(_philox(count)))
    flat = ir.RankedTensorType.get([count], kind.element_type)
    state, results = draw.operands[0], [draw.operands[0].type, flat]
    call = func.CallOp(results, ir.FlatSymbolRefAttr.get(name), [state])
    draw.results[0].replace_all_uses_with(call.results[0])
    draw.results[1].replace_all_uses_with(stablehlo.reshape(kind, call.results[1]))
    draw.erase()


@functools.lru_cache(maxsize=256)
def _philox(count: int) -> str:
    """Returns the text of a module that draws so many numbers of 32 bits.

    Its argument is the key and the counter, of 64 and 128 bits, the lower half first. It returns
    these for the next draw, and the numbers.
    """

    def halves(number: Any) -> tuple[Any, Any]:
        return number.astype(np.uint32), (number >> np.uint64(32)).astype(np.uint32)

    def once(_: int, carried: Any) -> Any:
        (first, second, third, fourth), keys = carried
        low, high = halves(first.astype(np.uint64) * np.uint64(_MULTIPLIERS[0]))
        other_low, other_high = halves(third.astype(np.uint64) * np.uint64(_MULTIPLIERS[1]))
        counter = other_high ^ second ^ keys[0], other_low, high ^ fourth ^ keys[1], low
        return counter, tuple(
            key + np.uint32(added) for key, added in zip(keys, _WEYL, strict=True)
        )

    def after(state: Any, counters: Any) -> tuple[Any, Any]:
        low = state[1] + counters
        return low, state[2] + (low < counters).astype(np.uint64)

    def draw(state: Any) -> Any:
        counters = -(-count // 4)
        low, high = after(state, jax.lax.iota(np.uint64, counters))
        begin = (*halves(low), *halves(high)), halves(state[0])
        four, _ = jax.lax.fori_loop(0, _ROUNDS, once, begin)
        next_state = jax.numpy.stack([state[0], *after(state, np.uint64(counters))])
        return next_state, jax.numpy.stack(four, 1).reshape(-1)[:count]

    with jax.enable_x64(True):
        text: str = jax.jit(draw).lower(jax.ShapeDtypeStruct([3], np.uint64)).as_text()
    return text
