"""The passes over a program's module: it is parsed once and written once, with all their work."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("jax")

from tfdp.strategy.xla import passes
from tfdp.strategy.xla._jax import ir


def test_names_that_are_no_function_s_of_the_module_stay():
    text = 'module @step_7 {\n func.func @main() { call @a_1 custom_call @a_12 @"b" } '
    text += 'func.func private @a_1() {} func.func private @"b"() {} }'
    assert passes.with_numbers_for_names(text) == (
        "module @program {\n func.func @main() { call @function_1 custom_call @a_12 @function_2 } "
        "func.func private @function_1() {} func.func private @function_2() {} }"
    )


def test_a_program_s_module_is_parsed_once_for_all_passes(on_devices, monkeypatch):
    """And once more by JAX, which has modules in contexts of its own."""
    strategy = on_devices(2, shard="parameters")
    with strategy.scope():
        table = tf.Variable(np.ones([64, 64], "float32"))
        kernel = tf.Variable(np.ones([64, 64], "float32"))

    @strategy.partitioned
    def step(rows):  # with work for each pass
        with tf.GradientTape() as tape:
            x = tf.gather(table, rows)
            x = tf.while_loop(lambda *_: True, lambda y: [y @ kernel], [x], maximum_iterations=3)[0]
            x = tf.reshape(x, [4, 8, 8, 1])
            x = tf.nn.max_pool2d(tf.nn.conv2d(x, x[:2, :2, :1, :], 1, "SAME"), 3, 2, "SAME")
            x += tf.random.stateless_uniform(tf.shape(x), [1, 2])
            loss = tf.reduce_sum(x**2)
        for variable, gradient in zip(
            (table, kernel), tape.gradient(loss, (table, kernel)), strict=True
        ):
            variable.assign_sub(1e-9 * tf.convert_to_tensor(gradient))
        return loss

    parse, parsed = ir.Module.parse, []

    def counted(module, *given, **named):
        parsed.append(module)
        return parse(module, *given, **named)

    monkeypatch.setattr(ir.Module, "parse", staticmethod(counted))
    step(tf.constant([1, 5, 1, 0], tf.int64))
    ((program, _),) = step._programs.values()
    text = program._lowered.module
    for each in ("while", "scatter", "convolution", "select_and_scatter", "optimization_barrier"):
        assert f"stablehlo.{each}" in text, each
    of_program = [each for each in parsed if isinstance(each, bytes) or "dot" in each]
    assert [each == text for each in of_program] == [False, True]


pytest.importorskip("jax")
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "scatters.py"


@pytest.mark.slow
def test_rows_are_added_by_indices_of_64_bits_and_what_is_outside_is_left_out():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) == 0
