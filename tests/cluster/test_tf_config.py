"""`TF_CONFIG` as Kubernetes, Kubeflow and people write it; and TensorFlow's own resolvers."""

import json
import types

import pytest
import tensorflow as tf

from tfdp.cluster import tf_config
from tfdp.cluster.tf_config import from_resolver
from tfdp.errors import ClusterError

# A Kubernetes job that writes the variable itself: one headless service, three pods.
KUBERNETES = {
    "cluster": {
        "worker": [
            "trainer-0.trainer.default.svc.cluster.local:2222",
            "trainer-1.trainer.default.svc.cluster.local:2222",
            "trainer-2.trainer.default.svc.cluster.local:2222",
        ]
    },
    "task": {"type": "worker", "index": 2},
}

# Kubeflow's TFJob with a chief, two workers and an evaluator, which it leaves out of the cluster.
KUBEFLOW = {
    "cluster": {
        "chief": ["mnist-chief-0.team-a.svc:2222"],
        "worker": ["mnist-worker-0.team-a.svc:2222", "mnist-worker-1.team-a.svc:2222"],
    },
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}


def detect(config):
    text = config if isinstance(config, str) else json.dumps(config)
    return tf_config.detect({"TF_CONFIG": text})


def of_task(config, task_type, index):
    return config | {"task": {"type": task_type, "index": index}}


def test_the_workers_of_a_kubernetes_job_are_its_ranks():
    cluster = detect(KUBERNETES)
    assert (cluster.rank, cluster.world_size) == (2, 3)
    assert cluster.addresses == tuple(KUBERNETES["cluster"]["worker"])
    assert cluster.coordinator == KUBERNETES["cluster"]["worker"][0]
    assert (cluster.source, cluster.job) == ("TF_CONFIG", "worker")


@pytest.mark.parametrize("chief", ["chief", "master"])
def test_the_chief_is_rank_0_and_the_workers_follow(chief):
    jobs = {"worker": KUBEFLOW["cluster"]["worker"], chief: KUBEFLOW["cluster"]["chief"]}
    config = KUBEFLOW | {"cluster": jobs}
    tasks = [(chief, 0), ("worker", 0), ("worker", 1)]
    clusters = [detect(of_task(config, *task)) for task in tasks]
    assert [cluster.rank for cluster in clusters] == [0, 1, 2]
    assert [cluster.job for cluster in clusters] == ["chief", "worker", "worker"]
    assert {cluster.coordinator for cluster in clusters} == {jobs[chief][0]}
    assert {cluster.addresses for cluster in clusters} == {(*jobs[chief], *jobs["worker"])}


def test_chief_and_master_are_one_name():
    assert detect(of_task(KUBEFLOW, "master", 0)).rank == 0


def test_the_order_of_the_jobs_does_not_matter():
    turned = {"cluster": dict(reversed(KUBEFLOW["cluster"].items()))}
    assert detect(KUBEFLOW | turned) == detect(KUBEFLOW)


def test_an_index_may_be_a_text():
    assert detect(of_task(KUBEFLOW, "worker", "1")).rank == 2


def test_a_job_may_be_a_mapping_from_indices():
    jobs = {"worker": {"1": "b:1", "0": "a:1"}}
    cluster = detect({"cluster": jobs, "task": {"type": "worker", "index": 0}})
    assert cluster.addresses == ("a:1", "b:1")


def test_jobs_without_tasks_are_not_there():
    jobs = KUBERNETES["cluster"] | {"ps": [], "chief": [], "evaluator": None}
    assert detect(KUBERNETES | {"cluster": jobs}) == detect(KUBERNETES)


def test_ipv6_addresses_are_addresses():
    jobs = {"worker": ["[fe80::1]:2222", "[fe80::2]:2222"]}
    cluster = detect({"cluster": jobs, "task": {"type": "worker", "index": 1}})
    assert cluster.coordinator == "[fe80::1]:2222"


@pytest.mark.parametrize("job", ["worker", "chief"])
def test_one_task_is_one_process(job):
    cluster = detect({"cluster": {job: ["a:1"]}, "task": {"type": job, "index": 0}})
    assert (cluster.rank, cluster.world_size) == (0, 1)
    assert cluster.coordinator is None
    assert (cluster.source, cluster.job) == ("TF_CONFIG", job)


@pytest.mark.parametrize(
    "config",
    ["", " ", "{}", {"task": {"type": "worker", "index": 0}}, {"cluster": {}}, {"cluster": None}],
)
def test_nothing_in_it_is_no_cluster(config):
    assert detect(config) is None


def test_unset_is_no_cluster():
    assert tf_config.detect({}) is None


WORKERS = {"worker": ["a:1", "b:1"]}
SECOND = {"type": "worker", "index": 1}


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ('{"cluster":', ["must be JSON", """'{"cluster":'""", "json.dumps", "unset it"]),
        ("[" * 100_000, ["must be JSON", "nested too deeply", "100000 characters", "unset it"]),
        ('{"task": ' + "9" * 5000 + "}", ["must be JSON", "5000 digits", "5010 characters"]),
        ("[1]", ["must be a JSON object", "'[1]'", 'Write {"cluster"']),
        ({"cluster": ["a:1"]}, ['"cluster"', "JSON object", "['a:1']", 'Write {"cluster"']),
        ({"cluster": WORKERS}, ["which task", "None", '"task": {"type": "worker"']),
        ({"cluster": WORKERS, "task": "worker"}, ["which task", "'worker'", '"task"']),
        ({"cluster": WORKERS, "task": {"index": 0}}, ["task type is None", '"type": "worker"']),
        (
            {"cluster": WORKERS, "task": {"type": "worker"}},
            ["whole number as index", "None", '"index": 0'],
        ),
        *(
            (
                {"cluster": WORKERS, "task": {"type": "worker", "index": index}},
                ["whole number as index", repr(index), '"index": 0'],
            )
            for index in (1.0, "one", -1, True, [0], "9" * 5000)
        ),
        (
            {"cluster": WORKERS, "task": {"type": "worker", "index": 2}},
            ["'worker' tasks, 2", "gives 2", "Count from 0"],
        ),
        (
            {"cluster": WORKERS, "task": {"type": "chief", "index": 0}},
            ["'chief'", "jobs are ['worker']", "List the task's address"],
        ),
        (
            {"cluster": WORKERS, "task": {"type": "trainer", "index": 0}},
            ["'trainer'", "jobs are ['worker']"],
        ),
        (
            of_task(KUBEFLOW, "evaluator", 0),
            ["a chief or a worker", "'evaluator'", "validation_data", "model.evaluate"],
        ),
        (of_task(KUBEFLOW, "ps", 0), ["a chief or a worker", "'ps'", "Start no such task"]),
        (
            {"cluster": WORKERS | {"ps": ["c:1"]}, "task": SECOND},
            ["no jobs but chief and worker", "'ps': ['c:1']", "leave that job out"],
        ),
        (
            {"cluster": WORKERS | {"evaluator": ["c:1"]}, "task": SECOND},
            ["no jobs but chief and worker", "'evaluator': ['c:1']", "leave that job out"],
        ),
        (
            {"cluster": {"chief": ["c:1"], "master": ["d:1"]}, "task": {"type": "chief"}},
            ["chief once", "'chief' and 'master'", "Keep one"],
        ),
        (
            {"cluster": {"chief": ["c:1", "d:1"]}, "task": {"type": "chief", "index": 0}},
            ["one chief", "has 2", "['c:1', 'd:1']", "'worker'"],
        ),
        (
            {"cluster": {"worker": "a:1,b:1"}, "task": SECOND},
            ["a list of addresses", "'a:1,b:1'", '"worker": ["host:port", ...]'],
        ),
        (
            {"cluster": {"worker": {"1": "a:1", "3": "b:1"}}, "task": SECOND},
            ["every task", "['1', '3']", "List all of them", "enableDynamicWorker"],
        ),
        (
            {"cluster": {"worker": ["a:1", "b"]}, "task": SECOND},
            ["Rank 1", "rank 1's address", "host:port", "'b'"],
        ),
        (
            {"cluster": {"worker": ["a:1", "b:" + "9" * 5000]}, "task": SECOND},
            ["Rank 1", "rank 1's address", "host:port"],
        ),
        (
            {"cluster": {"worker": ["a:1", 2222]}, "task": SECOND},
            ["Rank 1", "rank 1's address", "2222", "string"],
        ),
        (
            {"cluster": {"worker": ["a:1", "grpc://b:1"]}, "task": SECOND},
            ["Rank 1", "Leave the scheme out"],
        ),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["b:1", "a:1"]}, "task": SECOND},
            ["Rank 2", "ranks 0 and 2", "'a:1'", "another port"],
        ),
    ],
)
def test_what_is_wrong_in_it_is_named_with_its_fix(config, parts):
    with pytest.raises(ClusterError) as error:
        detect(config)
    for part in ["`TF_CONFIG`", *parts]:
        assert part in str(error.value)


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
