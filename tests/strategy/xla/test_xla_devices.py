"""The devices of a strategy, and the processes that share them."""

import dataclasses
import json

import pytest

from tfdp.cluster.rank_status import ranks_without_strategy
from tfdp.errors import ClusterError

jax = pytest.importorskip("jax")


def task(index, workers):
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def test_processes_cannot_join_once_jax_has_started(on_devices, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", task(1, ["a:2000", "b:2000"]))
    with pytest.raises(ClusterError, match=r"Rank 1 must join the other 1 of TF_CONFIG before JAX"):
        on_devices(2)


def test_a_cluster_of_others_than_jax_has_joined_is_refused(on_devices, monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setenv("TF_CONFIG", task(1, ["a:2000", "b:2000"]))
    with pytest.raises(ClusterError, match=r"All 2 processes of `TF_CONFIG`.*given 1. Leave the"):
        on_devices(2)


def test_processes_that_share_devices_and_have_not_met_are_refused(on_devices, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ClusterError, match=r"The 2 processes.*jax\.distributed\.initialize\(\)"):
        on_devices(2)


@dataclasses.dataclass(frozen=True)
class OfProcess:
    """A device of a process, by its number there."""

    process_index: int
    number: int
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"


@pytest.mark.parametrize("shares", [{0: 4, 1: 2}, {1: 4}])
def test_processes_have_equal_shares_of_the_devices(shares):
    import tfdp

    devices = [OfProcess(*each) for each in ((p, n) for p in shares for n in range(shares[p]))]
    with pytest.raises(ValueError, match=rf"they have {shares}".replace("{", r"\{")):
        tfdp.XLAStrategy(devices)


@pytest.mark.parametrize(
    "others", [{"platform": "gpu", "device_kind": "H100"}, {"device_kind": "TPU v4"}]
)
def test_devices_are_of_one_kind_whether_given_or_found(others, monkeypatch):
    import tfdp

    devices = [OfProcess(0, 0), OfProcess(0, 1, **others)]
    with pytest.raises(ValueError, match=r"of one kind.*received .*Use `jax.devices"):
        tfdp.XLAStrategy(devices)
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(ValueError, match=r"of one kind.*JAX has found .*Set CUDA_VISIBLE_DEVICES"):
        tfdp.XLAStrategy()


def test_a_launcher_is_told_that_a_strategy_was_made(on_devices, monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CONFIG", task(0, ["a:2000"]))
    monkeypatch.setenv("TFDP_RUN_STATUS", str(tmp_path))
    on_devices(2)
    assert ranks_without_strategy(str(tmp_path), range(2)) == [1]


@pytest.mark.parametrize("platforms, warns", [(None, True), ("cpu", False)])
def test_a_host_without_tpus_is_named_unless_it_was_chosen(monkeypatch, caplog, platforms, warns):
    import tfdp

    cpu = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: cpu)
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", platforms)
    try:
        strategy = tfdp.XLAStrategy()
    finally:
        jax.config.update("jax_platforms", before)
    assert repr(strategy) == "XLAStrategy(1 x cpu)"
    assert ("JAX has found no GPU and no TPU" in caplog.text) is warns
