"""What is asked of jaxlib by private names."""

import pytest
import tensorflow as tf

pytest.importorskip("jax")


def test_a_module_has_no_copies_for_which_stablehlo_has_no_operation(on_devices):
    from tfdp.strategy.xla._jax import make_ir_context, stablehlo_module, xla_client

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
    with make_ir_context():
        text = str(stablehlo_module(serialized))
    assert "mhlo.copy" in str(kept)
    assert "mhlo.copy" not in text
    assert "stablehlo.dot" in text


def test_devices_that_are_there_are_not_described(on_devices):
    assert on_devices(2).extended.layouts.are_there


@pytest.mark.parametrize("version", ["0.8.0", "0.10.2", "0.10.3.dev20260101"])
def test_versions_that_were_tested_are_taken_in_silence(version, caplog):
    from tfdp.strategy.xla._jax import check_version

    check_version(version)
    assert not [each for each in caplog.records if each.name == "tfdp"]


def test_an_older_version_is_refused_and_a_newer_one_is_named(caplog):
    from tfdp.strategy.xla._jax import check_version

    with pytest.raises(ImportError, match=r"jax 0\.8 or newer, but jax 0\.7\.2.*pip install"):
        check_version("0.7.2")
    check_version("0.12.0")
    assert "but jax 0.12.0 is installed" in caplog.text
