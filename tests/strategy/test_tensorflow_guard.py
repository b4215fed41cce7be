"""TensorFlow's own test bodies for strategies, which its wheel ships, run with tfdp's strategy.

`strategy_test_lib` holds bodies (`_test_...`) that the tests of every strategy of TensorFlow call.
They are imported, not copied. `ROWS` has one row for each: in which modes it runs, or why not.
"""

import dataclasses
import inspect
import socket
import sys
import types
import unittest
from collections.abc import Callable

import harness
import pytest
import tensorflow as tf
from tensorflow.python.distribute import strategy_test_lib
from tensorflow.python.eager import context

import tfdp

EAGER = "eager"
FUNCTION = "tf.function"  # the body's own `run_in_function=True`
SESSION = "session"  # a graph and a session, as in TensorFlow 1

NEEDS_EAGER = (
    AttributeError,
    "It reads tensors with `numpy()`; `_test_minimize_loss_graph` is its twin for sessions.",
)
NEEDS_GRAPH = (
    unittest.SkipTest,
    "It calls `tf.gradients`, which TensorFlow has in graphs only; the other modes run it.",
)
V1_ONLY = (
    unittest.SkipTest,
    "It is about `StrategyV1.experimental_make_numpy_dataset`; tfdp's is no `StrategyV1`.",
)
REMOTE = (
    AssertionError,
    "It expects devices of a remote worker (/job:worker); tfdp's are this process' own.",
)
NEEDS_SESSION = (
    unittest.SkipTest,
    "It runs the step in a session of a local cluster, which eager execution has not.",
)
V1_ITERATOR = (
    AttributeError,
    "It makes an initializable iterator, which distributed datasets of TensorFlow 2 have not.",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """How one body is run.

    Attributes:
      runs: The modes in which it must pass.
      fails: Per mode in which it cannot, the error that it ends with, and why.
      helper_of: The body that calls this one, if it is no test of its own.
      call: How it is called, where it takes more than the strategy.
    """

    runs: tuple[str, ...] = (EAGER, SESSION)
    fails: dict = dataclasses.field(default_factory=dict)
    helper_of: str | None = None
    call: Callable | None = None


def _soft_placement(body, test, strategy):
    # Its session knows one CPU only.
    body(test, strategy, soft_placement=True)


def _minimize_on_a_remote_worker(body, test, strategy):
    if context.executing_eagerly():
        return body(test, strategy)
    with pytest.MonkeyPatch.context() as patch:
        graph_body = test._test_minimize_loss_graph
        patch.setattr(
            test,
            "_test_minimize_loss_graph",
            lambda *args, **kwargs: graph_body(*args, soft_placement=True, **kwargs),
            raising=False,
        )
        return body(test, strategy)


def _input_fn(test):
    return test._input_fn_to_test_input_context(
        lambda: tf.data.Dataset.range(10),
        expected_num_replicas_in_sync=2,
        expected_num_input_pipelines=1,
        expected_input_pipeline_id=0,
    )


def _in_a_local_cluster(body, test, strategy):
    def pick_unused_port():
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            return probe.getsockname()[1]

    # TensorFlow's tests take ports from a package of this name, which its wheel does not require.
    picker = types.ModuleType("portpicker")
    picker.pick_unused_port = pick_unused_port
    # A session runs a function on another worker only where it is rewritten into the graph.
    with pytest.MonkeyPatch.context() as patch, harness.graphs_as_traced(False):
        patch.setitem(sys.modules, "portpicker", picker)
        body(test, strategy)


def _pairs(body, test, strategy):
    body(test, strategy, _input_fn(test), [[i, i + 1] for i in range(0, 10, 2)])


def _pairs_of_an_iterator(body, test, strategy):
    iterator = strategy.make_input_fn_iterator(_input_fn(test))
    pairs = [[i, i + 1] for i in range(0, 10, 2)]
    body(test, iterator, strategy.extended.worker_devices, pairs)


ANY = "DistributionTestBase"
ONE = "OneDeviceDistributionTestBase"
TWO = "TwoDeviceDistributionTestBase"
REMOTE_WORKER = "RemoteSingleWorkerMirroredStrategyBase"

EVERYWHERE = (EAGER, FUNCTION, SESSION)


def _helper_of(body):
    return Row(runs=(), helper_of=body)


ROWS = {
    (ANY, "_test_minimize_loss_eager"): Row(runs=(EAGER,), fails={SESSION: NEEDS_EAGER}),
    (ANY, "_test_minimize_loss_graph"): Row(call=_soft_placement),
    (ANY, "_test_summary_for_replica_zero_only"): Row(),
    (ANY, "_test_replica_id"): Row(),
    (ANY, "_test_call_and_merge_exceptions"): Row(),
    (ANY, "_test_input_fn_iterable"): Row(runs=(EAGER,), fails={SESSION: V1_ITERATOR}, call=_pairs),
    (ANY, "_test_input_fn_iterator"): Row(call=_pairs_of_an_iterator),
    (ANY, "_test_global_step_update"): Row(),
    (ANY, "_test_numpy_dataset"): Row(
        runs=(), fails={EAGER: V1_ONLY, FUNCTION: V1_ONLY, SESSION: V1_ONLY}
    ),
    (ANY, "_test_trainable_variable"): Row(),
    (ONE, "_test_run"): Row(),
    (ONE, "_test_all_reduce_sum"): Row(),
    (ONE, "_test_all_reduce_sum_gradients"): Row(runs=(SESSION,), fails={EAGER: NEEDS_GRAPH}),
    (ONE, "_test_all_reduce_sum_gradient_tape"): Row(),
    (ONE, "_test_all_reduce_mean"): Row(),
    (ONE, "_test_all_reduce_mean_gradients"): Row(runs=(SESSION,), fails={EAGER: NEEDS_GRAPH}),
    (ONE, "_test_all_reduce_mean_gradient_tape"): Row(),
    (ONE, "_test_collective_comms"): _helper_of("_test_all_reduce_sum"),
    (ONE, "_test_collective_comms_gradients"): _helper_of("_test_all_reduce_sum_gradients"),
    (ONE, "_test_collective_comms_gradient_tape"): _helper_of("_test_all_reduce_sum_gradient_tape"),
    (ONE, "_test_device_and_input_device_are_colocated"): Row(
        runs=(SESSION,), fails={EAGER: NEEDS_SESSION}, call=_in_a_local_cluster
    ),
    (ONE, "_test_device_and_input_device_are_colocated_with_function"): Row(
        runs=(SESSION,), fails={EAGER: NEEDS_SESSION}, call=_in_a_local_cluster
    ),
    (TWO, "_test_run"): Row(runs=EVERYWHERE),
    (TWO, "_test_all_reduce_sum"): Row(runs=EVERYWHERE),
    (TWO, "_test_all_reduce_sum_gradients"): Row(
        runs=(FUNCTION, SESSION), fails={EAGER: NEEDS_GRAPH}
    ),
    (TWO, "_test_all_reduce_sum_gradient_tape"): Row(runs=EVERYWHERE),
    (TWO, "_test_all_reduce_mean"): Row(runs=EVERYWHERE),
    (TWO, "_test_all_reduce_mean_gradients"): Row(
        runs=(FUNCTION, SESSION), fails={EAGER: NEEDS_GRAPH}
    ),
    (TWO, "_test_all_reduce_mean_gradient_tape"): Row(runs=EVERYWHERE),
    (TWO, "_test_collective_comms"): _helper_of("_test_all_reduce_sum"),
    (TWO, "_test_collective_comms_gradients"): _helper_of("_test_all_reduce_sum_gradients"),
    (TWO, "_test_collective_comms_gradient_tape"): _helper_of("_test_all_reduce_sum_gradient_tape"),
    (REMOTE_WORKER, "_testNumReplicasInSync"): Row(),
    (REMOTE_WORKER, "_testMinimizeLoss"): Row(call=_minimize_on_a_remote_worker),
    (REMOTE_WORKER, "_testDeviceScope"): Row(runs=(), fails={EAGER: REMOTE, SESSION: REMOTE}),
    (REMOTE_WORKER, "_testMakeInputFnIteratorWithDataset"): Row(),
    (REMOTE_WORKER, "_testMakeInputFnIteratorWithCallable"): Row(),
}


def _bases():
    return {
        name: cls
        for name, cls in vars(strategy_test_lib).items()
        if inspect.isclass(cls)
        and issubclass(cls, unittest.TestCase)
        and cls.__module__ == strategy_test_lib.__name__
    }


def _run(base, body_name, mode):
    """Runs one body in a test case of its own; what it raises comes through."""
    num_devices = 1 if base == ONE else 2
    body = vars(_bases()[base])[body_name]
    call = ROWS[base, body_name].call or (
        lambda body, test, strategy: body(
            test, strategy, **({"run_in_function": True} if mode == FUNCTION else {})
        )
    )

    class Test(_bases()[base]):
        def runTest(self):
            devices = [f"CPU:{index}" for index in range(num_devices)]
            call(body, self, tfdp.DataParallelStrategy(devices))

        def _get_num_gpus(self):
            return num_devices

    if mode != SESSION:
        return Test().debug()
    with context.graph_mode(), tf.Graph().as_default():
        return Test().debug()


def _cases(select):
    return [
        pytest.param(
            base,
            body,
            mode,
            id=f"{base}.{body}-{mode}",
            marks=[pytest.mark.exhaustive] if mode == SESSION else [],
        )
        for (base, body), row in ROWS.items()
        for mode in select(row)
    ]


@pytest.mark.parametrize(("base", "body", "mode"), _cases(lambda row: row.runs))
def test_tensorflow_own_test_body_passes_with_tfdp(base, body, mode):
    try:
        _run(base, body, mode)
    except unittest.SkipTest as skip:
        pytest.fail(f"It was skipped: {skip}")


@pytest.mark.parametrize(("base", "body", "mode"), _cases(lambda row: row.fails))
def test_a_left_out_body_still_ends_with_the_error_that_keeps_it_out(base, body, mode):
    error, _ = ROWS[base, body].fails[mode]
    with pytest.raises(error):
        _run(base, body, mode)


def test_every_body_of_tensorflow_has_a_row_and_every_row_a_body():
    bodies = {
        (name, attribute)
        for name, cls in _bases().items()
        for attribute, value in vars(cls).items()
        if attribute.startswith("_test") and inspect.isfunction(value)
    }
    assert set(ROWS) == bodies


def test_every_row_covers_every_mode_that_its_body_has():
    for (base, body), row in ROWS.items():
        takes_function = (
            "run_in_function" in inspect.signature(vars(_bases()[base])[body]).parameters
        )
        modes = {EAGER, SESSION} | ({FUNCTION} if takes_function else set())
        if row.helper_of:
            continue
        assert set(row.runs) | set(row.fails) == modes, (base, body)
        assert not set(row.runs) & set(row.fails), (base, body)
        assert all(len(reason.split()) > 7 for _, reason in row.fails.values()), (base, body)


def test_every_helper_is_called_by_a_body_that_runs():
    for (base, body), row in ROWS.items():
        if row.helper_of:
            caller = vars(_bases()[base])[row.helper_of]
            assert body in caller.__code__.co_names, (base, body)
            assert ROWS[base, row.helper_of].runs, (base, body)
