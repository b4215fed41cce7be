"""What a rank is started with: ports of its own, and what is added to its environment."""

import json
import socket

import pytest

from tfdp.base import machine
from tfdp.cluster.launch import rank_start
from tfdp.cluster.launch.rank_start import RankGroup, ReservedPorts, rank_environment, tf_config


def group_of(ranks):
    return RankGroup.of_this_host(range(20000, 20000 + ranks), [None] * ranks)


@pytest.mark.parametrize(("cores", "ranks", "share"), [(16, 4, "4"), (16, 3, "5"), (2, 8, "1")])
def test_ranks_share_the_cores(monkeypatch, cores, ranks, share):
    monkeypatch.setattr(machine, "cores", lambda: list(range(cores)))
    added = rank_environment(group_of(ranks), 0, environ={})
    assert added["TF_NUM_INTRAOP_THREADS"] == added["OMP_NUM_THREADS"] == share


@pytest.mark.parametrize(("processor", "switch"), [("x86_64", "1"), ("aarch64", None)])
def test_ranks_compute_with_onednn_where_it_was_measured(monkeypatch, processor, switch):
    monkeypatch.setattr("platform.machine", lambda: processor)
    added = rank_environment(group_of(1), 0, environ={})
    assert added.get("TF_ENABLE_ONEDNN_OPTS") == switch
    user = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    assert "TF_ENABLE_ONEDNN_OPTS" not in rank_environment(group_of(1), 0, environ=user)


def test_ranks_leave_nccl_memory_and_gpus_have_threads_of_their_own_unless_the_user_says():
    added = rank_environment(group_of(1), 0, environ={"TF_GPU_THREAD_MODE": "global"})
    assert added["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert "TF_GPU_THREAD_MODE" not in added
    added = rank_environment(group_of(1), 0, environ={"TF_FORCE_GPU_ALLOW_GROWTH": "false"})
    assert added["TF_GPU_THREAD_MODE"] == "gpu_private"
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in added


@pytest.mark.parametrize(("devices", "threads"), [(None, 8), (1, 8), (4, 16)])
def test_there_are_threads_for_all_devices_of_a_rank(devices, threads):
    added = rank_environment(group_of(1), 0, devices, environ={})
    assert added["TF_NUM_INTEROP_THREADS"] == str(threads)


def test_only_the_cluster_replaces_what_the_user_has_set():
    before = rank_environment(group_of(2), 0, 2, environ={})
    mine = dict.fromkeys(before, "mine")
    mine["TFDP_SECRET"] = "of another run"
    added = rank_environment(group_of(2), 1, 2, "/folder", environ=mine, secret="of this run")
    assert added == {
        "TF_CONFIG": tf_config(["127.0.0.1:20000", "127.0.0.1:20001"], 1),
        "TFDP_DEVICES_PER_PROCESS": "2",
        "TFDP_RUN_STATUS": "/folder",
        "TFDP_SECRET": "of this run",
    }
    assert json.loads(added["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


def test_two_runs_get_different_ports_also_after_their_release(monkeypatch):
    monkeypatch.setattr(rank_start, "_PORTS", range(31000, 31040))
    with ReservedPorts(8) as one:
        one.release()
        with ReservedPorts(8) as other:
            assert not set(one.ports) & set(other.ports)


def test_a_released_port_can_be_listened_on():
    with ReservedPorts(1) as reserved:
        with pytest.raises(OSError):
            socket.create_server((rank_start.LOOPBACK, reserved.ports[0]))
        reserved.release()
        socket.create_server((rank_start.LOOPBACK, reserved.ports[0])).close()


def test_more_ranks_than_ports_are_refused(monkeypatch):
    monkeypatch.setattr(rank_start, "_PORTS", range(31050, 31053))
    with pytest.raises(OSError, match=r"received 4, and after 3 ports no other .* or start fewer"):
        ReservedPorts(4)
