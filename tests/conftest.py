"""Four logical CPU devices for every test, and the fixtures of the promise."""

import itertools
import os
import pathlib

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

# Run by tests in processes of their own; `--doctest-modules` would import them here.
collect_ignore_glob = ["*/scripts/*"]

if harness.CLUSTER_REPLICAS:
    harness.strategy(None)  # before TensorFlow is used
else:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES,
    )


if harness.CLUSTER_REPLICAS:

    @pytest.fixture
    def tmp_path(tmp_path):
        """Rank 0's folder, on every rank."""
        board = harness.strategy(None).extended.processes.board
        return pathlib.Path(board.from_first("a test's folder", str(tmp_path)).value)


@pytest.fixture(params=[harness.REPLICAS], ids=harness.count_id)
def replicas(request):
    """The number of replicas. A test may choose its own."""
    return request.param


def pytest_collection_modifyitems(config, items):
    """Leaves out what shows no more than others do.

    That is on four replicas what is slow besides, for three show as much; and across processes,
    where only the first case of each test is asked for, the others: they differ in what each
    process does by itself.
    """
    seen = set()

    def superfluous(item):
        if harness.ONLY_FIRST_CASES:
            test = (item.path, item.originalname)
            seen_before = test in seen
            seen.add(test)
            return seen_before
        given = getattr(item, "callspec", None)
        on_four = given is not None and given.params.get("replicas") == 4
        return on_four and len(list(item.iter_markers("slow"))) > 1

    left_out = [item for item in items if superfluous(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


_references = {}


@pytest.fixture
def trains_as_one_device(request, replicas):
    """Returns a function that trains on one device and on `replicas`, and asserts that both agree.

    The one-device side of a test runs once and serves every number of replicas.
    """
    ordinals = itertools.count()
    test = request.node.nodeid.split("[")[0]
    case = request.node.callspec.id.replace(harness.count_id(replicas), "")

    def check(build, use=harness.fit_arrays, **tolerances):
        key = (test, case, next(ordinals))
        if key not in _references:
            _references[key] = harness.trained_once(build, use)
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
