"""Draws under XLAStrategy: those of one compiled device, their state computed once."""

import re

import jax
import numpy as np
import pytest
import tensorflow as tf

from tfdp.xla.draws import with_states_apart

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
    program = on_devices(1).partitioned(DRAWS["uniform"])
    program(tf.constant([1, 2]))
    ((compiled, _),) = program._programs.values()
    computations = compiled._compiled.as_text().split("\n\n")
    drawing = [each for each in computations if re.search(r"u64\[4096\]\S* multiply", each)]
    assert drawing, "the draw is in fours"
    for each in drawing:
        assert not re.search(r"u64\[\] multiply", each), "the seed is scrambled before"


def test_a_module_without_draws_is_left_as_it_is():
    module = jax.jit(lambda x: x + 1).lower(1.0).as_text()
    assert with_states_apart(module) is module
