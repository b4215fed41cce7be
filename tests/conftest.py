"""Four logical CPU devices for every test, and the fixtures of the promise."""

import itertools
import os

# TensorFlow reads these when it is imported. Its default number of inter-op threads can starve
# iterators on two cores; a test never needs a GPU.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import harness
import keras
import pytest
import tensorflow as tf

LOGICAL_DEVICES = 4

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES,
)


@pytest.fixture(
    params=[
        2,
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(4, marks=pytest.mark.slow),
    ],
    ids=lambda count: f"{count}-replicas",
)
def replicas(request):
    """The number of replicas; a test may narrow it by its own `parametrize`."""
    return request.param


_references = {}


@pytest.fixture
def trains_as_one_device(request, replicas):
    """Returns a function that trains on one device and on `replicas`, and asserts that both agree.

    The one-device side of a test runs once and serves every number of replicas.
    """
    ordinals = itertools.count()
    test = request.node.nodeid.split("[")[0]
    case = request.node.callspec.id.replace(f"{replicas}-replicas", "").replace(str(replicas), "")

    def check(build, use=harness.fit_arrays, **tolerances):
        key = (test, case, next(ordinals))
        if key not in _references:
            _references[key] = harness.train(build, use)
        outcome = harness.train(build, use, replicas)
        harness.assert_same_outcome(outcome, _references[key], **tolerances)
        return outcome, _references[key]

    return check


@pytest.fixture(autouse=True)
def fresh_keras_session():
    """Undoes what a test sets globally: dtype policy, names, learning phase."""
    yield
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
