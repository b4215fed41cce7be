"""XLAStrategy under launchers: processes join in JAX, fail by name, and go on from checkpoints."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import meeting
import numpy as np
import pytest
import tiers

pytest.importorskip("jax")

from tfdp.strategy.xla import jax_distributed

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "joins.py"
pytestmark = pytest.mark.multiprocess
ENVIRON = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}


def run(folder, how, rank, *words, devices=1, processes=2):
    """Runs `tfdp run` to its end; returns its exit code and all that was said."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tfdp", "run", "-n", processes, *words]
    environ = ENVIRON | {"JAX_NUM_CPU_DEVICES": str(devices)}
    ended = subprocess.run(
        list(map(str, [*command, SCRIPT, folder, how, rank])),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.returncode, ended.stdout


def weights(folder, processes=2):
    """The weights that each rank has at the end, which must have the same bits."""
    first, *others = (np.load(folder / f"{rank}.npy") for rank in range(processes))
    for other in others:
        np.testing.assert_array_equal(first, other)
    return first


@pytest.mark.slow
def test_a_killed_rank_is_named_and_a_restart_has_the_bits_of_no_end(tmp_path):
    code, said = run(tmp_path / "whole", "never", 0, devices=2)
    assert code == 0 and "XLAStrategy(4 x cpu) in 2 processes" in said, said
    code, said = run(tmp_path / "killed", "killed", 1, "--max-restarts", 1, devices=2)
    assert code == 0, said
    assert "rank 1 of 2 failed first, with signal SIGKILL" in said
    assert "step-00000004.checkpoint: epoch 1, 4 steps in all" in said
    np.testing.assert_array_equal(weights(tmp_path / "killed"), weights(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), tiers.first_of((2, 1), (1, 2)))
def test_a_training_goes_on_with_fewer_and_with_more_processes_within_rounding(
    before, after, tmp_path
):
    assert run(tmp_path / "whole", "never", 0, processes=1)[0] == 0
    folder = tmp_path / "ended"
    assert run(folder, "killed", 0, processes=before)[0] == 137
    code, said = run(folder, "never", 0, processes=after)
    assert code == 0 and "The training goes on from" in said, said
    expected = weights(tmp_path / "whole", 1)
    np.testing.assert_allclose(weights(folder, after), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "rank", "named"),
    tiers.first_of(
        (
            "unlike program",
            1,
            "must make the same program of 'train_step'.*rank 1 it differs: .*dense<3.*dense<2",
        ),
        ("killed", 0, "Rank 1: lost rank 0: its connection broke"),
        ("killed at rest", 0, "GOT RankLostError at .* Rank 1: lost rank 0: its connection broke"),
        ("raises", 0, "Rank 1: lost rank 0: its script ended with ValueError: a mistake of one"),
        ("raises", 1, "Rank 0: lost rank 1: its script ended with ValueError: a mistake of one"),
        ("leaves", 0, "rank 0 of 2 ended with exit code 0 before the others were done"),
        ("leaves", 1, "rank 1 of 2 ended with exit code 0 before the others were done"),
        (
            "stops training",
            1,
            "`stop_training` must be alike .* is False on rank 0 and True on r",
        ),
        ("stopped", 1, "Rank 0: lost rank 1: it gave no sign of life for .* s"),
        (
            "unlike sizes",
            1,
            "the same whole batch, but the batch on rank 1 is another one",
        ),
        ("unlike shard", 1, "options of a strategy must be alike.*shard is None on rank 0 and 'o"),
        (
            "unlike order",
            1,
            r"layout_map is \[\['kernel', .* on rank 0 and \[\['up/kernel', .* on rank 1",
        ),
        ("used before", 0, "must join the other 1 of TF_CONFIG before JAX is used.*without `dev"),
    ),
)
def test_what_goes_wrong_in_one_rank_ends_all_and_is_named(how, rank, named, tmp_path):
    code, said = run(tmp_path, how, rank)
    assert code != 0
    assert re.search(named, said), said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", tiers.first_of("slurm", "mpi"))
def test_other_launchers_ranks_join_and_train_alike(launcher, tmp_path):
    command = [sys.executable, SCRIPT, tmp_path, "never", "0"]
    if launcher == "mpi":
        pytest.importorskip("mpi4py")
        mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
        if not mpiexec.exists():
            pytest.skip("needs an mpiexec beside Python")
        started = [([mpiexec, "-n", "2", *command], ENVIRON)]
    else:
        step = {
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "localhost",
            "TFDP_COORDINATOR": f"127.0.0.1:{meeting.free_ports(1)[0]}",
        }
        started = [
            (command, ENVIRON | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
            for rank in range(2)
        ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen([*map(str, words)], env=env, **pipes) for words, env in started]
    said = [each.communicate(timeout=300)[0] for each in running]
    assert [each.returncode for each in running] == [0] * len(running), "\n".join(said)
    weights(tmp_path)


def told(rank, **own):
    """What a rank tells of itself, with changes."""
    jax = {"JAX_PLATFORMS": "", "the plugin": "jax-cuda13-plugin 0.10.2", "GPUs": 1}
    versions = {"tfdp": "0.1", "jax": "0.10.2"}
    gpu = [f"GPU-{rank}"]
    return {
        "versions": versions | own.pop("versions", {}),
        "local_size": 0,
        "jax": jax | own.pop("jax", {}),
        "gpus": own.pop("gpus", gpu),
        "address": f"node-{rank}:1",
    }


def test_ranks_that_are_alike_can_work_together():
    assert jax_distributed.difference([told(0), told(1), told(2)]) is None


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"versions": {"jax": "0.9.2"}}, "rank 0 has jax 0.10.2 and rank 2 .* has 0.9.2"),
        ({"jax": {"the plugin": ""}}, "of the plugin rank 0 has 'jax-cuda13.*rank 2 .* has ''"),
        ({"jax": {"GPUs": 2}}, "of GPUs rank 0 has 1 and rank 2 .* has 2"),
        ({"jax": {"JAX_PLATFORMS": "cpu"}}, "of JAX_PLATFORMS rank 0 has '' and rank 2"),
        ({"gpus": ["GPU-1"]}, "rank 1 and rank 2 both have GPU-1.*CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_rank_that_differs_is_named(other, named):
    assert re.search(named, jax_distributed.difference([told(0), told(1), told(2, **other)]))


@pytest.mark.parametrize("taken", [False, True])
def test_the_port_of_jaxs_service_is_kept_for_it_and_another_found_where_it_is_taken(taken):
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        if not taken:
            first.close()
        with jax_distributed._reserved("127.0.0.1", port, None) as kept:
            number = kept.getsockname()[1]
            assert (number == port) is not taken
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", number))


@pytest.mark.parametrize("coordinator", ["127.0.0.1", "node-1"])
def test_a_listener_is_reached_where_it_is_said_to_be(coordinator):
    with jax_distributed._listening(coordinator) as listener:
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])).close()
        assert (listener.getsockname()[0] == "127.0.0.1") is (coordinator == "127.0.0.1")
