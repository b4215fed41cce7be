"""A step that is planned for a chip: what XLA compiles, against what is known of the model."""

import pytest

from tfdp.tools.cli import main
from tfdp.tools.plan import compiled_costs
from tfdp.tools.plan.plan_models import ModelError
from tfdp.tools.plan.quantities import Chip

pytest.importorskip("jax")

MODEL = """
import keras
def build():
    hidden = keras.layers.Dense(2048, "relu")
    return keras.Sequential([keras.Input([1024]), hidden, keras.layers.Dense(512)])
def two():
    one, other = keras.Input([8]), keras.Input([8])
    outputs = [keras.layers.Dense(2)(one), keras.layers.Dense(3)(other)]
    return keras.Model([one, other], outputs)
def of_any_length():
    inputs = keras.Input([None, 4])
    return keras.Model(inputs, keras.layers.Dense(2)(inputs))
"""
FAST_MEMORY, FAST_PRODUCTS = Chip(1e12, 1e18), Chip(1e18, 1e12)


@pytest.fixture
def model(tmp_path):
    """The functions of a file that build a model."""
    path = tmp_path / "planned.py"
    path.write_text(MODEL)
    return lambda name: f"{path}:{name}"


def test_operations_are_those_of_the_products(model):
    work, origin = compiled_costs.workload(model("build"), 256, None, FAST_MEMORY)
    weights = 1024 * 2048 + 2048 * 512
    # Two a weight and example forward and twice as many backward, but none to the inputs.
    products = 256 * 2 * (3 * weights - 1024 * 2048)
    assert work.compute_seconds == pytest.approx(products / 1e12, rel=0.05)
    assert work.parameters == weights + 2048 + 512
    assert "billion operations" in origin


def test_bytes_are_at_least_those_of_weights_and_state(model):
    work, _ = compiled_costs.workload(model("build"), 8, None, FAST_PRODUCTS)
    # Adam reads weights and two slots, writes them, and each gradient is written and read.
    assert work.compute_seconds >= 8 * work.gradient_bytes / 1e12
    assert work.compute_seconds <= 30 * work.gradient_bytes / 1e12
    assert work.activation_bytes < work.gradient_bytes


def test_a_model_of_several_inputs_and_outputs_is_planned(model):
    work, _ = compiled_costs.workload(model("two"), 8, "adam", FAST_MEMORY)
    assert work.compute_seconds > 0 and work.slots == 2


def test_a_size_that_is_not_known_is_named(model):
    with pytest.raises(ModelError, match=r"\(None, None, 4\).*`keras.Input` all sizes"):
        compiled_costs.workload(model("of_any_length"), 8, None, FAST_MEMORY)


def test_the_command_names_the_strategy_that_compiles(model, capsys):
    assert main(["plan", "--model", model("two"), "--chip", "495tflops,3.35TB", "-n", "1,2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "compiled by XLA" in said
    assert "Use: strategy = tfdp.XLAStrategy()" in said
    assert "DataParallelStrategy" not in said


@pytest.mark.parametrize(
    ("words", "received"),
    [
        (["--parameters", "25M", "--chip", "495tflops,3.35TB"], "received it without a model"),
        (
            ["--model", "ResNet50", "--chip", "495tflops,3.35TB", "--examples-per-second", "9"],
            "received it with examples-per-second",
        ),
        (["--model", "ResNet50", "--chip", "495"], "received '495'"),
    ],
)
def test_a_chip_without_a_model_or_with_a_rate_is_refused(words, received, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["plan", *words])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert received in said
    assert "495tflops,3.35TB" in said
