"""Which tests run and in which order, and the fixtures of the promise.

TensorFlow is imported by the tests that use it: those of pure functions start without it.
"""

import contextlib
import gc
import itertools
import os
import pathlib
import random
import runpy
import sys

# TensorFlow reads these when it is imported. Its default number of inter-op threads can starve
# iterators on two cores; a test never needs a GPU, but where `replica_counts.DEVICE` asks for it.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("TFDP_TESTS_DEVICE", "CPU") == "CPU":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# So does JAX: its CPU devices stand for TPUs.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import hypothesis
import pytest
import tiers
from replica_counts import CLUSTER_REPLICAS, REPLICAS, REPLICAS_OF_VARIANTS, count_id

# Where Python finds `sitecustomize`, and what this repository holds beside the package, in what
# tests start and in pytest's workers.
SITE = pathlib.Path(__file__).parent / "site"
if str(SITE) not in sys.path:
    runpy.run_path(str(SITE / "sitecustomize.py"))
    folders = [str(SITE), str(SITE.parents[1]), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))

# No test asserts a time: how long an example takes depends on what else the machine does. Nor does
# one depend on chance: examples are the same in each run.
hypothesis.settings.register_profile(
    "tfdp",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tfdp")

# Run by tests in processes of their own; `--doctest-modules` would import them here.
collect_ignore_glob = ["scripts/*", "*/scripts/*"]


if CLUSTER_REPLICAS:
    import lean

    lean.import_keras()
    import harness

    harness.strategy(None)  # before TensorFlow is used

    @pytest.fixture
    def tmp_path(tmp_path):
        """Rank 0's folder, on every rank."""
        board = harness.strategy(None).extended.processes.board
        return pathlib.Path(board.from_first("a test's folder", str(tmp_path)).value)


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """Frees the graphs of a module's tests, and lets the collector pass over what is left.

    It would look through all of that again in each pass.
    """
    yield
    if "tensorflow" in sys.modules:
        forget_custom_gradients()
    gc.collect()
    gc.freeze()


def forget_custom_gradients():
    """Takes the gradients of functions in graphs out of TensorFlow's registry.

    Each call of a function under `tf.custom_gradient` registers one in every graph, under a name of
    its own, and TensorFlow keeps it, and with it the whole graph, as long as the process lives.
    Keras' optimizers make such a call in each trace. A graph that is still in use then has no
    gradient any more, which TensorFlow says.
    """
    from tensorflow.python.framework import ops

    registered = ops.gradient_registry._registry
    for name in [name for name in registered if name.startswith("CustomGradient-")]:
        del registered[name]


@pytest.fixture
def replicas(request):
    """The number of replicas. A test may choose its own."""
    return REPLICAS_OF_VARIANTS if tiers.is_exhaustive(request.node) else REPLICAS


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Checks the rule of `tiers`, marks what trains, and puts first what starts processes.

    To train on replicas or to start processes takes seconds: `make check` has the telling tests
    alone. Workers take the tests from both ends: while one waits for processes, the other trains,
    and no two wait for TensorFlow's start at once.
    """
    config.stash[tiers.FAULTS] = tiers.without_a_fast_case(items)
    if tiers.PART:
        kept = tiers.in_part(items, tiers.PART)
        config.hook.pytest_deselected(items=list({*items} - {*kept}))
        items[:] = kept
    for item in items:
        trains = "replicas" in getattr(item, "fixturenames", ())
        starts_processes = item.get_closest_marker("multiprocess") is not None
        if (trains or starts_processes) and item.get_closest_marker("telling") is None:
            item.add_marker(pytest.mark.slow)
    if CLUSTER_REPLICAS:
        promised = [item for item in items if item.path.parent.name == "keras"]
        kept = [item for item in promised if not tiers.is_exhaustive(item)]
        first = {(item.path, item.originalname): item for item in reversed(kept)}
        left_out = {*promised} - {*first.values()}
        items[:] = [item for item in items if item not in left_out]
    else:
        items.sort(key=lambda item: item.get_closest_marker("multiprocess") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Runs exhaustive tests in graphs as they were traced; see `replica_counts`."""
    with contextlib.ExitStack() as stack:
        if tiers.is_exhaustive(item) and "harness" in sys.modules:
            import harness

            stack.enter_context(harness.graphs_as_traced())
        return (yield)


def pytest_collection_finish():
    """Gives TensorFlow its devices before anything runs on it; what was imported stays."""
    if "tensorflow" in sys.modules:
        import harness  # noqa: F401
    gc.freeze()


_references = {}


@pytest.fixture
def trains_as_one_device(request, replicas):
    """Returns a function that trains on one device and on `replicas`, and asserts that both agree.

    The one-device side of a test runs once and serves every number of replicas.
    """
    ordinals = itertools.count()
    test = request.node.nodeid.split("[")[0]
    case = request.node.name.replace(count_id(replicas), "")

    def check(build, use=None, one_device_eagerly=True, **tolerances):
        import harness

        use = use or harness.fit_arrays
        key = (test, case, next(ordinals))
        if key not in _references:
            _references[key] = harness.trained_once(build, use, one_device_eagerly)
        outcome = harness.train(build, use, replicas)
        harness.assert_same_outcome(outcome, _references[key], **tolerances)
        return outcome, _references[key]

    return check


@pytest.fixture(autouse=True)
def seeded(request):
    """Draws the same weights in every run: Keras takes unset seeds from Python's generator."""
    random.seed(request.node.nodeid)


@pytest.fixture(autouse=True)
def fresh_keras_session():
    """Undoes what a test sets globally: dtype policy, names, learning phase."""
    yield
    if "keras" not in sys.modules:
        return
    import keras

    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
