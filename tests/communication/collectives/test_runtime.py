"""The private TensorFlow names that the collectives stand on are where and what they expect."""

import inspect
import pathlib

import pytest
import tensorflow as tf

from tfdp.communication.collectives import _tensorflow, runtime
from tfdp.errors import ClusterError

METHODS = {
    "configure_collective_ops": [
        "self",
        "collective_leader",
        "scoped_allocator_enabled_ops",
        "use_nccl_communication",
        "device_filters",
    ],
    "enable_collective_ops": ["self", "server_def"],
    "ensure_initialized": ["self"],
    "abort_collective_ops": ["self", "code", "message"],
}


@pytest.mark.parametrize("name", METHODS)
def test_the_context_has_the_methods_that_start_and_end_collectives(name):
    method = getattr(type(_tensorflow.context()), name)
    assert list(inspect.signature(method).parameters) == METHODS[name]


def test_a_server_is_described_by_these_fields():
    server = _tensorflow.ServerDef(job_name="worker", task_index=1, protocol="grpc")
    server.cluster.CopyFrom(tf.train.ClusterSpec({"worker": ["a:1", "b:2"]}).as_cluster_def())
    assert server.cluster.job[0].tasks[1] == "b:2"


def test_the_global_seed_is_what_was_set():
    tf.random.set_seed(321)
    assert _tensorflow.global_seed() == 321


def test_only_one_module_of_the_collectives_imports_private_names():
    for path in pathlib.Path(_tensorflow.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        private = "tensorflow.python" in text or "tensorflow.core" in text
        assert private == (path.name == "_tensorflow.py"), path.name


def test_a_runtime_that_is_in_use_cannot_be_started():
    tf.constant(1.0)
    with pytest.raises(ClusterError, match="must be made before TensorFlow is used"):
        runtime.start(0, ["127.0.0.1:1", "127.0.0.1:2"])


@pytest.mark.parametrize(
    ("hosts", "cores", "share"),
    [
        ("a", 1, True),
        ("a", 2, False),
        ("aa", 2, True),
        ("aa", 4, False),
        ("ab", 2, False),
        ("aab", 3, True),
    ],
)
def test_ranks_share_cores_where_their_host_has_fewer_than_two_for_each(hosts, cores, share):
    addresses = [f"{host}:{port}" for port, host in enumerate(hosts, start=1)]
    assert runtime._ranks_share_cores(0, addresses, cores) == share


def test_idle_threads_are_told_to_sleep_and_all_else_stays_configured(monkeypatch):
    context = _tensorflow.context()
    assert not context.config.experimental.disable_thread_spinning
    known = _tensorflow.ConfigProto(log_device_placement=True)
    monkeypatch.setattr(context, "_config", known)
    runtime._let_idle_threads_sleep()
    assert context.config.experimental.disable_thread_spinning
    assert context.config.log_device_placement
    assert not known.experimental.disable_thread_spinning
