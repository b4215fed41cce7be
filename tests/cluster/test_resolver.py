"""TensorFlow's own resolvers, and what is none."""

import types

import pytest
import tensorflow as tf

from tfdp.cluster.resolver import from_resolver
from tfdp.errors import ClusterError

SIMPLE = tf.distribute.cluster_resolver.SimpleClusterResolver


def simple(jobs, **task):
    return SIMPLE(tf.train.ClusterSpec(jobs), **task)


def test_a_simple_resolver_s_tasks_are_ranks():
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    cluster = from_resolver(simple(jobs, task_type="worker", task_id=1))
    assert (cluster.rank, cluster.world_size, cluster.job) == (2, 3, "worker")
    assert cluster.addresses == ("a:1", "b:1", "c:1")
    assert (cluster.coordinator, cluster.source) == ("a:1", "cluster_resolver")


def test_tensorflow_s_resolver_of_tf_config_is_understood(monkeypatch):
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", config)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert from_resolver(resolver).rank == 1


def test_a_resolver_without_a_cluster_is_one_process(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert from_resolver(resolver).world_size == 1
    assert from_resolver(simple({})).source == "cluster_resolver"


@pytest.mark.parametrize(
    ("resolver", "parts"),
    [
        (simple({"worker": ["a:1", "b:1"]}), ["task type is None", "`task_type`", "`task_id`"]),
        (
            simple({"worker": ["a:1", "b:1"]}, task_type="worker"),
            ["whole number as index", "None", "`task_id`"],
        ),
        (
            simple({"worker": ["a:1", "b:1"]}, task_type="worker", task_id=2),
            ["'worker' tasks, 2", "gives 2"],
        ),
        (
            simple({"worker": {0: "a:1", 2: "b:1"}}, task_type="worker", task_id=0),
            ["every task", "['0', '2']"],
        ),
        (
            simple({"worker": ["a:1"], "ps": ["b:1"]}, task_type="ps", task_id=0),
            ["a chief or a worker", "'ps'"],
        ),
        (
            simple({"worker": ["a:1", "b"]}, task_type="worker", task_id=0),
            ["Rank 0", "rank 1's address", "'b'"],
        ),
    ],
)
def test_what_is_wrong_in_a_resolver_is_named_with_its_fix(resolver, parts):
    with pytest.raises(ClusterError) as error:
        from_resolver(resolver)
    for part in ["`cluster_resolver`", *parts]:
        assert part in str(error.value)


def test_what_is_no_resolver_is_refused():
    with pytest.raises(TypeError) as error:
        from_resolver(types.SimpleNamespace(task_type="worker"))
    assert "no `cluster_spec`, `task_id`" in str(error.value)
    assert "SimpleClusterResolver(" in str(error.value)
