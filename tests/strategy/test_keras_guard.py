"""Keras' own tests of tf.distribute, which its wheel ships, run with tfdp's strategy.

They are imported, not copied. While one runs, `tf.distribute.MirroredStrategy` makes tfdp's. The
wheels of Keras 3.11, 3.13 and 3.14 have no tests.
"""

import importlib
import inspect
import pathlib
import sys
import types
import unittest

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tfdp

ROOT = pathlib.Path(keras.src.__file__).parent
MAKES_A_STRATEGY = "MirroredStrategy("

# Every test file of Keras' wheel that makes a MirroredStrategy.
FILES = (
    "backend/common/variables_test.py",
    "backend/tensorflow/distribute_test.py",
    "backend/tensorflow/optimizer_distribute_test.py",
    "callbacks/swap_ema_weights_test.py",
    "ops/nn_test.py",
    "trainers/data_adapters/tf_dataset_adapter_test.py",
)

# Case, the words with which it ends, and why it cannot pass.
LEFT_OUT = {
    "OptimizerDistributeTest.test_single_step1": (
        "tf_keras not installed",
        "It trains with Keras 2's optimizer, of the package tf_keras. tfdp adapts Keras 3's.",
    ),
    "OptimizerDistributeTest.test_gradient_accumulation": (
        "ACTUAL: array([[2., 2.],\n       [4., 4.]]",
        "It reads replica 0's accumulator; tfdp's read as a sum over replicas: see the last tests.",
    ),
    "OptimizerDistributeTest.test_ema": (
        "ACTUAL: array([[1., 2.],\n       [3., 4.]]",
        "Its replicas share one tensor, which TensorFlow sums once when eager: see the last tests.",
    ),
}

if not any(ROOT.rglob("*_test.py")):
    pytest.skip(f"The wheel of Keras {keras.__version__} has no tests.", allow_module_level=True)


class _AnyMark:
    """Takes every mark of Keras' suite, which this suite does not declare, and ignores it."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: args[0] if callable(args[0]) else lambda test: test


def _import(file):
    # What the files import and the wheel lacks; the tests that run here use none of it.
    absent = {name: types.ModuleType(name) for name in ("conftest", "jax", "torch")}
    absent["conftest"].skip_if_backend = lambda *args: lambda test: test
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest, "mark", _AnyMark())
        for name, module in absent.items():
            patch.setitem(sys.modules, name, module)
        return importlib.import_module("keras.src." + file[:-3].replace("/", "."))


def _sources(module):
    """For each test of the module that makes a strategy: its class, its name, what makes it."""
    for cls in vars(module).values():
        if not (inspect.isclass(cls) and issubclass(cls, unittest.TestCase)):
            continue
        if cls.__module__ != module.__name__:
            continue
        shared = inspect.getsource(cls.setUp) if "setUp" in vars(cls) else ""
        for name in unittest.defaultTestLoader.getTestCaseNames(cls):
            own = inspect.getsource(inspect.unwrap(getattr(cls, name)))
            if MAKES_A_STRATEGY in shared + own:
                yield cls, name, (shared, own)


MODULES = {file: _import(file) for file in FILES}
VARIANTS = {"SwapEMAWeightsTest"}
CASES = [
    pytest.param(
        cls,
        name,
        id=f"{cls.__name__}.{name}",
        marks=[pytest.mark.exhaustive] if cls.__name__ in VARIANTS else [],
    )
    for module in MODULES.values()
    for cls, name, _ in _sources(module)
]


@pytest.fixture
def mirrored_is_tfdp(monkeypatch):
    """Makes MirroredStrategy tfdp's, and keeps the context: Keras' tests reset it for two CPUs."""
    made = []

    def make(devices):
        made.append(tfdp.DataParallelStrategy(devices))
        return made[-1]

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", make)
    monkeypatch.setattr(context, "_reset_context", lambda: None)
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *args: None)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "name"), CASES)
def test_keras_own_test_passes_with_tfdp(cls, name, mirrored_is_tfdp):
    result = unittest.TestResult()
    cls(name).run(result)
    assert result.testsRun == 1
    if f"{cls.__name__}.{name}" in LEFT_OUT:
        words, reason = LEFT_OUT[f"{cls.__name__}.{name}"]
        endings = [text for _, text in result.skipped + result.failures + result.errors]
        assert any(words in text for text in endings), f"LEFT_OUT is out of date: {endings}"
        pytest.skip(reason)
    assert not result.skipped, result.skipped
    assert result.wasSuccessful(), "\n".join(text for _, text in result.failures + result.errors)
    assert mirrored_is_tfdp, "The test made no strategy, so that nothing was tested."


def test_every_test_file_of_keras_that_makes_a_mirrored_strategy_is_in_the_list():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*_test.py")
        if MAKES_A_STRATEGY in path.read_text(encoding="utf-8")
    }
    assert found == set(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_every_strategy_that_a_file_makes_belongs_to_a_test_that_runs(file):
    run = {source for _, _, sources in _sources(MODULES[file]) for source in sources}
    text = (ROOT / file).read_text(encoding="utf-8")
    assert sum(source.count(MAKES_A_STRATEGY) for source in run) == text.count(MAKES_A_STRATEGY)


def test_every_left_out_case_exists_and_states_its_reason():
    assert set(LEFT_OUT) <= {case.id for case in CASES}
    assert all(len(reason.split()) > 8 for _, reason in LEFT_OUT.values())


def test_accumulated_gradients_read_as_their_sum_and_give_the_weights_of_keras_own_test():
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    grads = np.array([[1.0, 1.0], [2.0, 2.0]], "float32")
    with strategy.scope():
        variable = keras.Variable([[1.0, 2.0], [3.0, 4.0]])
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
        for step in range(1, 4):
            strategy.run(lambda: optimizer.apply_gradients([(tf.constant(grads), variable)]))
            summed = 2 * step * grads if step < 3 else np.zeros_like(grads)
            np.testing.assert_array_equal(optimizer._accumulated_gradients[0].numpy(), summed)
            assert optimizer._iterations.numpy() == step
            assert optimizer.iterations.numpy() == (step == 3)
    np.testing.assert_array_equal(variable.numpy(), [[-1.0, 0.0], [-1.0, 0.0]])


def test_gradients_that_add_up_to_that_of_keras_own_test_give_its_moving_averages():
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    half = tf.fill([2, 2], 0.5)  # one tensor, shared by the replicas: it counts for each
    start = np.array([[3.0, 4.0], [5.0, 6.0]])
    with strategy.scope():
        variable = keras.Variable(start)
        optimizer = keras.optimizers.SGD(
            1.0, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
        )
        for values, averages in ((1.0, 1.0), (2.0, 1.1), (1.29, 1.29)):
            strategy.run(lambda: optimizer.apply_gradients([(half, variable)]))
            average = optimizer._model_variables_moving_average[0]
            np.testing.assert_allclose(variable.numpy(), start - values, rtol=1e-6)
            np.testing.assert_allclose(average.numpy(), start - averages, rtol=1e-6)
