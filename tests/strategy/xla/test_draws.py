"""Draws under XLAStrategy: those of one compiled device, in programs that are fast."""

import re

import jax
import numpy as np
import pytest
import tensorflow as tf

from tfdp.strategy.xla import executables
from tfdp.strategy.xla._jax import ir, make_ir_context
from tfdp.strategy.xla.draws import speed_up_draws

DRAWS = {
    "uniform": lambda seed: tf.random.stateless_uniform([64, 256], seed),
    "normal": lambda seed: tf.random.stateless_normal([3, 5], seed),
    "truncated normal": lambda seed: tf.random.stateless_truncated_normal([7], seed),
    "integers": lambda seed: tf.random.stateless_uniform([9], seed, 0, 100, tf.int32),
    "integers of 64 bits": lambda seed: tf.random.stateless_uniform([5], seed, 0, 9, tf.int64),
    "bfloat16": lambda seed: tf.random.stateless_uniform([4, 4], seed, dtype=tf.bfloat16),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_is_that_of_one_compiled_device(on_devices, draw):
    compiled, own = tf.function(draw, jit_compile=True), on_devices(2).partitioned(draw)
    for seed in ([1, 2], [2**31 - 1, -7]):
        np.testing.assert_array_equal(own(tf.constant(seed)), compiled(tf.constant(seed)))


def test_a_seed_is_scrambled_once_and_not_for_each_number(on_devices):
    """In a loop over all numbers there is no product of one number of 64 bits alone."""
    program = on_devices(1).partitioned(DRAWS["uniform"])
    program(tf.constant([1, 2]))
    ((compiled, _),) = program._programs.values()
    computations = compiled._compiled.as_text().split("\n\n")
    drawing = [each for each in computations if re.search(r"u\d+\[4096\]", each)]
    assert drawing, "the draw is in fours"
    for each in drawing:
        assert not re.search(r"u64\[\] multiply", each), "the seed is scrambled before"


def with_fast_draws(text, platform):
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        speed_up_draws(module, platform)
        return str(module)


def bits(state, shape):
    """What XLA itself draws, and the state after it."""
    result = [jax.ShapeDtypeStruct([3], np.uint64), jax.ShapeDtypeStruct(shape, np.uint32)]
    kinds = [
        f"tensor<{'x'.join(map(str, each.shape))}xui{each.dtype.itemsize * 8}>" for each in result
    ]
    text = f"""func.func @main(%state: {kinds[0]}) -> ({kinds[0]}, {kinds[1]}) {{
      %next, %numbers = stablehlo.rng_bit_generator %state, algorithm = PHILOX
        : ({kinds[0]}) -> ({kinds[0]}, {kinds[1]})
      return %next, %numbers : {kinds[0]}, {kinds[1]}
    }}"""
    with jax.enable_x64(True):
        found = []
        for module in (text, with_fast_draws(text, "gpu"), with_fast_draws(text, "cpu")):
            assert ("rng_bit_generator" in module) == (len(found) < 2)
            run = jax.jit(lambda state, module=module: executables._call(module, result, [state]))
            found.append([np.asarray(each) for each in run(np.array(state, np.uint64))])
        return found


@pytest.mark.parametrize("shape", [[1], [4], [7], [3, 5]], ids=str)
@pytest.mark.parametrize("counter", [[0, 0], [2**64 - 1, 5], [2**64 - 1, 2**64 - 1]], ids=str)
def test_the_rounds_written_here_are_those_of_xla(shape, counter):
    (own_next, own), *others = bits([0x0123456789ABCDEF, *counter], shape)
    for state, numbers in others:
        np.testing.assert_array_equal(numbers, own)
        np.testing.assert_array_equal(state, own_next)
