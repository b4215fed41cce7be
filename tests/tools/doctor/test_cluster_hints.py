"""What the doctor finds off, from what the ranks say of themselves."""

import dataclasses

import pytest

from tfdp.base.hooks import versions
from tfdp.cluster.launch.rank_start import RankGroup, rank_environment
from tfdp.tools.doctor.cluster_hints import described, hints
from tfdp.tools.doctor.rank_facts import RankFacts

TESTED = {package: [*versions.tested(package)][-1] for package in ("tensorflow", "keras")}


def healthy(rank=0, world_size=1, **changed):
    """A rank as `tfdp run` starts it on a host of two cores."""
    ports = [20000 + i for i in range(world_size)]
    group = RankGroup.of_this_host(ports, [None] * world_size)
    environment = rank_environment(group, rank, environ={})
    facts = RankFacts(
        rank=rank,
        host="node-1",
        versions=TESTED,
        cores=[0, 1],
        environment={**environment, "TF_NUM_INTRAOP_THREADS": str(max(1, 2 // world_size))},
    )
    return dataclasses.replace(facts, **changed)


def without(facts, *variables):
    kept = {name: v for name, v in facts.environment.items() if name not in variables}
    return dataclasses.replace(facts, environment=kept)


def with_environment(facts, **variables):
    return dataclasses.replace(facts, environment={**facts.environment, **variables})


def the_hint(*ranks):
    [hint] = hints(ranks)
    assert "should" in hint.text and "but" in hint.text
    return hint


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_of_the_launcher_are_well(world_size):
    assert hints([healthy(rank, world_size) for rank in range(world_size)]) == []


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_every_version_that_was_tested_is_well(package):
    for version in versions.tested(package):
        assert hints([healthy(versions={**TESTED, package: version})]) == []


@pytest.mark.parametrize(
    ("package", "version", "fix"),
    [
        ("tensorflow", "2.18.0", "pip install tensorflow-cpu=="),
        ("tensorflow", "2.210.0", "pip install tensorflow-cpu=="),
        ("keras", "3.99.0", "pip install keras=="),
    ],
)
def test_an_untested_version_is_named_with_the_tested_ones(package, version, fix):
    tested = list(versions.tested(package))
    hint = the_hint(healthy(versions={**TESTED, package: version}))
    assert f"should be {' or '.join(tested)}," in hint.text
    assert f"is {version}." in hint.text
    assert f"{fix}{tested[-1]}" in hint.text


def test_few_inter_op_threads_are_named_whether_set_or_by_default():
    assert "but is 4:" in the_hint(with_environment(healthy(), TF_NUM_INTEROP_THREADS="4")).text
    unset = without(healthy(), "TF_NUM_INTEROP_THREADS")
    assert "not set, which means one per core, 2" in the_hint(unset).text
    assert "export TF_NUM_INTEROP_THREADS=8" in the_hint(unset).text


def test_many_cores_give_enough_inter_op_threads_by_default():
    facts = without(healthy(cores=range(8)), "TF_NUM_INTEROP_THREADS")
    assert hints([facts]) == []


def test_ranks_of_one_host_without_a_limit_on_their_threads_are_named():
    ranks = [without(healthy(rank, 2), "TF_NUM_INTRAOP_THREADS") for rank in range(2)]
    hint = the_hint(*ranks)
    assert hint.ranks == (0, 1)
    assert "4 threads together" in hint.text
    assert "export TF_NUM_INTRAOP_THREADS=1 OMP_NUM_THREADS=1" in hint.text


def test_ranks_with_cores_or_hosts_of_their_own_share_nothing():
    free = [without(healthy(rank, 2), "TF_NUM_INTRAOP_THREADS") for rank in range(2)]
    bound = [dataclasses.replace(facts, cores=[facts.rank]) for facts in free]
    apart = [dataclasses.replace(facts, host=f"node-{facts.rank}") for facts in free]
    assert hints(bound) == hints(apart) == []


def test_more_ranks_than_cores_cannot_have_fewer_threads():
    assert hints([healthy(rank, 3) for rank in range(3)]) == []


@pytest.mark.parametrize(
    ("changed", "fix"),
    [
        ({"built_with_cuda": False}, "pip install 'tfdp[gpu]'"),
        ({"built_with_cuda": True}, "TF_CPP_MIN_LOG_LEVEL=0 tfdp doctor"),
    ],
)
def test_gpus_that_are_not_used_are_named_with_the_reason(changed, fix):
    assert fix in the_hint(healthy(gpus=2, **changed)).text


def test_hidden_gpus_are_named_with_the_variable():
    facts = with_environment(healthy(gpus=1, built_with_cuda=True), CUDA_VISIBLE_DEVICES="-1")
    assert "CUDA_VISIBLE_DEVICES is '-1'" in the_hint(facts).text


def test_ranks_on_one_gpu_are_named():
    ranks = [healthy(rank, 2, devices=["GPU:0"], gpus=2, own_gpus=["1"]) for rank in range(2)]
    assert "several ranks of one host use GPU 1." in the_hint(*ranks).text
    assert hints([dataclasses.replace(f, own_gpus=[str(f.rank)]) for f in ranks]) == []


def test_another_keras_backend_is_named():
    assert "is 'jax'" in the_hint(with_environment(healthy(), KERAS_BACKEND="jax")).text


def test_ranks_are_named_where_there_are_several():
    ranks = [healthy(0, 2), with_environment(healthy(1, 2), KERAS_BACKEND="jax")]
    [hint] = hints(ranks)
    assert described(hint, 2).startswith("hint (rank 1): KERAS_BACKEND")
    assert described(hint, 1).startswith("hint: KERAS_BACKEND")


def on_gpu(rank=0, **changed):
    """A rank of two, as `tfdp run` starts it, with a GPU of its own."""
    own = {"devices": ["GPU:0"], "own_gpus": [str(rank)], "gpus": 2, "built_with_cuda": True}
    return healthy(rank, 2, **{**own, "gpu_kinds": ["NVIDIA H100"], "nccl": "2.27.3", **changed})


def test_ranks_of_the_launcher_on_gpus_are_well():
    assert hints([on_gpu(0), on_gpu(1)]) == []


@pytest.mark.parametrize("name", ["TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_THREAD_MODE"])
def test_settings_of_gpus_that_nobody_made_are_named_and_the_users_are_his(name):
    hint = the_hint(without(on_gpu(0), name), on_gpu(1))
    assert f"`export {name}=" in hint.text and hint.ranks == (0,)
    assert hints([with_environment(on_gpu(0), **{name: "other"}), on_gpu(1)]) == []
    assert hints([without(healthy(), name)]) == []  # it has no GPU


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpu_kinds": ["NVIDIA A100"]}, "NVIDIA A100 and NVIDIA H100"),
        ({"own_gpus": ["MIG-5c89852c"]}, "MIG-5c89852c are parts"),
    ],
)
def test_gpus_that_nccl_cannot_use_well_are_named(changed, words):
    hint = the_hint(on_gpu(0), on_gpu(1, **changed))
    assert words in hint.text and hint.ranks == (0, 1)
    assert hints([on_gpu(0, **changed)]) == []  # alone, without NCCL
