"""The precision of products of float32: of what is compiled, by TensorFlow's and JAX's settings."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

jax = pytest.importorskip("jax")

from tfdp.strategy.xla import lowering, precision  # noqa: E402
from tfdp.strategy.xla._jax import ir, make_ir_context  # noqa: E402


@contextlib.contextmanager
def without_tensor_float_32():
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


SETTINGS = {
    "default": (contextlib.nullcontext, "DEFAULT"),
    "TensorFlow's": (without_tensor_float_32, "HIGHEST"),
    "high": (lambda: jax.default_matmul_precision("high"), "HIGH"),
    "highest": (lambda: jax.default_matmul_precision("highest"), "HIGHEST"),
}


def levels_of(module):
    """The precision of each operand of a product in a module's text, by MLIR's own attributes."""
    found = []
    with make_ir_context():
        parsed = ir.Module.parse(module)

        def read(operation):
            if "precision_config" in operation.attributes:
                found.append(str(operation.attributes["precision_config"]))
            return ir.WalkResult.ADVANCE

        parsed.operation.walk(read)
    return found


@pytest.fixture
def compiled(monkeypatch):
    """The modules that are lowered, as they are compiled."""
    from tfdp.strategy.xla import compiled

    modules = []

    def kept(*given):
        modules.append(lowering.lowered(*given))
        return modules[-1]

    monkeypatch.setattr(compiled, "lowered", kept)
    return modules


def network(strategy):
    layers = keras.layers
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([8, 8, 3]),
                layers.Conv2D(4, 3),
                layers.DepthwiseConv2D(3),
                layers.Reshape([16, 4]),
                layers.LSTM(4, return_sequences=True),
                layers.Flatten(),
                layers.Dense(2),
            ]
        )
        model.compile("sgd", "mse")
    return model


X, Y = np.ones([8, 8, 8, 3], "float32"), np.ones([8, 2], "float32")


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_product_of_a_step_has_the_precision_that_is_asked_for(setting, on_devices, compiled):
    context, level = SETTINGS[setting]
    strategy = on_devices(2)
    model = network(strategy)
    with context():
        model.train_on_batch(X, Y)
    (lowered,) = compiled
    found = levels_of(lowered.module)
    each = f"#stablehlo<precision {level}>"
    assert len(found) >= 12  # forward, and for both operands backward: 5 layers, LSTM has two
    assert set(found) == {f"[{each}, {each}]"}
    assert strategy.explain(model).products == {"float32": len(found)}  # on CPUs


def test_a_change_between_calls_is_another_program_and_the_way_back_is_none(on_devices, caplog):
    program = on_devices(2).partitioned(lambda x: tf.matmul(x, x))
    x = tf.ones([4, 4])
    for context, traced in (
        (contextlib.nullcontext, 1),
        (without_tensor_float_32, 2),
        (contextlib.nullcontext, 2),
        (SETTINGS["highest"][0], 2),  # as TensorFlow's
        (SETTINGS["high"][0], 3),
    ):
        with context():
            program(x)
        assert program.experimental_get_tracing_count() == traced
    assert "compiled once more" not in caplog.text


def with_precision(text, level):
    with make_ir_context():
        module = ir.Module.parse(text)
        products = precision.raise_precision(module, level)
        return str(module), products


def test_products_of_other_dtypes_and_of_more_precision_stay(on_devices):
    module = """
    func.func @main(%a: tensor<2x2xf32>, %b: tensor<2x2xbf16>) -> tensor<2x2xf32> {
      %0 = stablehlo.dot %a, %a : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %1 = stablehlo.dot %0, %a, precision = [HIGHEST, HIGHEST]
        : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %2 = stablehlo.dot %b, %b : (tensor<2x2xbf16>, tensor<2x2xbf16>) -> tensor<2x2xf32>
      %3 = stablehlo.add %1, %2 : tensor<2x2xf32>
      return %3 : tensor<2x2xf32>
    }
    """
    text, products = with_precision(module, "HIGH")
    high, highest = (f"#stablehlo<precision {level}>" for level in ("HIGH", "HIGHEST"))
    assert levels_of(text) == [f"[{high}, {high}]", f"[{highest}, {highest}]"]
    assert products == {
        ("float32", "HIGH"): 1,
        ("float32", "HIGHEST"): 1,
        ("bfloat16", "DEFAULT"): 1,
    }
    same, products = with_precision(module, "DEFAULT")
    assert levels_of(same) == [f"[{highest}, {highest}]"] and products["float32", "DEFAULT"] == 1


def test_levels_are_read_as_jax_writes_them():
    program = jax.jit(lambda x: jax.lax.dot(x, x, precision="highest"))
    text = str(program.lower(np.ones([2, 2], np.float32)).compiler_ir("stablehlo"))
    _, products = with_precision(text, "DEFAULT")
    assert products == {("float32", "HIGHEST"): 1}


@pytest.mark.parametrize(
    ("platform", "level", "name"),
    [
        ("cpu", "DEFAULT", "float32"),
        ("gpu", "DEFAULT", "TF32"),
        ("gpu", "HIGH", "TF32"),
        ("gpu", "HIGHEST", "float32"),
        ("tpu", "DEFAULT", "bfloat16"),
        ("tpu", "HIGH", "bfloat16 x 3"),
        ("tpu", "HIGHEST", "bfloat16 x 6"),
    ],
)
def test_what_float32_is_on_a_platform(platform, level, name):
    products = {("float32", level): 2, ("float16", level): 1}
    assert precision.computed_in(products, platform) == {name: 2, "float16": 1}


def test_an_algorithm_of_products_alone_is_refused(on_devices):
    program = on_devices(1).partitioned(lambda x: tf.matmul(x, x))
    for preset in ("TF32_TF32_F32", "BF16_BF16_F32_X3"):
        refused = pytest.raises(ValueError, match=f"but is '{preset}'.*\"highest\"")
        with jax.default_matmul_precision(preset), refused:
            program(tf.ones([2, 2]))
    with jax.default_matmul_precision("F32_F32_F32"):
        assert precision.asked() == "HIGHEST"
