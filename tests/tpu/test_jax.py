"""What is asked of jaxlib by private names."""

import pytest
import tensorflow as tf

pytest.importorskip("jax")


def test_a_module_has_no_copies_for_which_stablehlo_has_no_operation(on_devices):
    from tfdp.tpu._jax import stablehlo_text, xla_client

    first, second = tf.Variable(tf.ones([4, 4])), tf.Variable(tf.ones([4, 4]))

    @tf.function(jit_compile=True)
    def swapped(x):
        value = tf.matmul(x, first)
        first.assign(second)
        second.assign(value)
        return value

    serialized = swapped.experimental_get_compiler_ir(tf.ones([4, 4]))(stage="hlo_serialized")
    computation = xla_client.XlaComputation(serialized)
    kept = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    text = stablehlo_text(serialized)
    assert "mhlo.copy" in str(kept)
    assert "mhlo.copy" not in text
    assert "stablehlo.dot" in text


def test_devices_that_are_there_are_not_described(on_devices):
    assert on_devices(2).extended.layouts.are_there
