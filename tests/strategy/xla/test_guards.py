"""TensorFlow's and Keras' own tests of strategies, which their wheels ship, with XLAStrategy.

Those that DataParallelStrategy passes, from the same tables. A step of XLAStrategy has one replica
and whole batches: what a test says of two replicas that hold values of their own cannot hold.
"""

import unittest

import jax
import pytest
import tensorflow as tf
from strategy import test_keras_guard as of_keras
from strategy import test_tensorflow_guard as of_tensorflow
from tensorflow.python.eager import context
from tiers import MARK

import tfdp

TWO_REPLICAS = "It expects of a step a value for each of two replicas; there is one, of all devices"
NO_COPIES = (
    "It asks for a replica's copies of a variable, or of what `run` returned; both are whole"
)
TENSORFLOW_1 = "It makes a graph and a session of TensorFlow 1, in which no program can be called"
PIPELINES = (
    "It expects two replicas to be told to `dataset_fn`, which is to give whole batches here"
)
KERAS_2 = "It trains with Keras 2's optimizer, of the package tf_keras, which is not installed"
DATASETS = (
    "It expects a class of TensorFlow's; batches are cut where they are sent, and data as given"
)

ANY, REMOTE = of_tensorflow.ANY, of_tensorflow.REMOTE_WORKER
OF_TENSORFLOW = {
    (base, body): TWO_REPLICAS for base, body in of_tensorflow.ROWS if base == of_tensorflow.TWO
} | {
    (ANY, "_test_minimize_loss_graph"): TENSORFLOW_1,
    (ANY, "_test_input_fn_iterable"): PIPELINES,
    (ANY, "_test_input_fn_iterator"): PIPELINES,
    (REMOTE, "_testMakeInputFnIteratorWithDataset"): PIPELINES,
    (REMOTE, "_testMakeInputFnIteratorWithCallable"): PIPELINES,
}
OF_KERAS = {
    "DistributeTest.test_correctness_with_fit_and_regularizer": NO_COPIES,
    "DistributeTest.test_epoch_iterator": DATASETS,
    "DistributeTest.test_seed_generator": NO_COPIES,
    "DistributeTest.test_strategy_run": NO_COPIES,
    "DistributeTest.test_variable_creation": NO_COPIES,
    "DistributeTest.test_variable_synchronization": NO_COPIES,
    "OptimizerDistributeTest.test_correctness_with_golden": TWO_REPLICAS,
    "OptimizerDistributeTest.test_gradient_accumulation": TWO_REPLICAS,
    "OptimizerDistributeTest.test_single_step0": TWO_REPLICAS,
    "OptimizerDistributeTest.test_single_step1": KERAS_2,
    "NNOpsCorrectnessTest.test_moments_sync_with_distribution_strategy0": NO_COPIES,
    "NNOpsCorrectnessTest.test_moments_sync_with_distribution_strategy1": NO_COPIES,
}

# What cannot pass is left to `make exhaustive`.
BODIES = [
    pytest.param(base, body, mode, marks=[MARK] if (base, body) in OF_TENSORFLOW else [])
    for (base, body), row in of_tensorflow.ROWS.items()
    for mode in row.runs
    if mode != of_tensorflow.SESSION  # a graph of TensorFlow 1
]
CASES = [
    pytest.param(case.id, *case.values, marks=[MARK] if case.id in OF_KERAS else [])
    for case in of_keras.CASES
]


@pytest.fixture
def strategies_are_xla(monkeypatch):
    """Makes tfdp's other strategy, and MirroredStrategy, this one, on as many devices."""

    def make(devices):
        return tfdp.XLAStrategy(jax.devices()[: len(devices)])

    monkeypatch.setattr(tfdp, "DataParallelStrategy", make)
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", make)
    monkeypatch.setattr(context, "_reset_context", lambda: None)
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *args: None)


@pytest.mark.parametrize(("base", "body", "mode"), BODIES)
@pytest.mark.usefixtures("strategies_are_xla")
def test_a_body_of_tensorflow_passes_or_cannot(base, body, mode):
    if (base, body) not in OF_TENSORFLOW:
        of_tensorflow._run(base, body, mode)
        return
    with pytest.raises((AssertionError, TypeError)):
        of_tensorflow._run(base, body, mode)


@pytest.mark.parametrize(("name", "cls", "method"), CASES)
@pytest.mark.usefixtures("strategies_are_xla")
def test_a_test_of_keras_passes_or_cannot(name, cls, method):
    result = unittest.TestResult()
    cls(method).run(result)
    assert result.testsRun == 1
    endings = [text for _, text in result.failures + result.errors + result.skipped]
    assert bool(endings) == (name in OF_KERAS), "\n".join(endings)


def test_each_reason_is_of_a_test():
    assert set(OF_TENSORFLOW) <= set(of_tensorflow.ROWS)
    assert set(OF_KERAS) <= {case.id for case in of_keras.CASES}
