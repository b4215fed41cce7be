"""The sides that `tfdp check-gpu` times, and what it says of their times."""

import importlib.util

import pytest

from tfdp.tools.bench.child_process import ChildFailure
from tfdp.tools.check_gpu import speed

STEP = {"tfdp": 0.01, "stock": 0.02, "one_device": 0.005, "ddp": 0.04}


@pytest.fixture
def runs(monkeypatch):
    """Replaces the processes, of ten seconds each if they may; returns their words by side."""
    begun, clock = [], [0.0]

    def process(module, words, limit_seconds, prefix="", environment=None, on_gpus=False):
        side = "ddp" if "tfdp.tools.bench.ddp_worker" in words else words[words.index("--side") + 1]
        begun.append((side, words, on_gpus))
        clock[0] += min(10.0, limit_seconds)
        if limit_seconds < 10.0:
            return ChildFailure("python", f"was killed after {limit_seconds:g} s", "")
        return {"median_step_seconds": STEP[side]}

    monkeypatch.setattr(speed, "run_for_json", process)
    monkeypatch.setattr(speed.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return begun


def test_several_gpus_have_a_replica_each_and_ddp_a_rank_on_each(runs):
    found = speed.compared("GPU", 4, 1e6)
    assert found.state == "works"
    assert {side for side, _, _ in runs} == {"tfdp", "stock", "ddp"}
    assert all(on_gpus for _, _, on_gpus in runs)
    for side, words, _ in runs:
        assert words[words.index("-n" if side == "ddp" else "--replicas") + 1] == "4"
    for case in found.details["cases"]:
        assert case["ratios"] == {"stock": 0.5, "ddp": 0.25}
    assert "small on 4: 10.00 ms (0.25 x ddp's, 0.50 x stock's)" in found.said


def test_one_gpu_is_compared_with_one_device_and_its_parts_with_mirrored_replicas(runs):
    found = speed.compared("GPU", 1, 1e6)
    sides = {case["replicas"]: case["ratios"].keys() for case in found.details["cases"]}
    assert sides == {1: {"stock", "one_device", "ddp"}, 2: {"stock"}}  # NCCL takes one rank on one


def test_without_pytorch_ddp_is_left_out(runs, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert speed.compared("CPU", 2, 1e6).state == "works"
    assert {side for side, _, _ in runs} == {"tfdp", "stock"}


def test_what_has_run_when_the_time_is_over_is_compared(runs):
    found = speed.compared("CPU", 2, 62.0)
    assert len(runs) == 5  # the sixth would begin with less than its time left
    (case,) = found.details["cases"]
    assert [len(seconds) for seconds in case["step_seconds"].values()] == [2, 2, 1]
    assert case["ratios"] == {"stock": 0.5, "ddp": 0.25}


@pytest.mark.parametrize(("limit", "state"), [(55.0, "works"), (15.0, "failed")])
def test_a_run_that_the_end_of_the_time_stops_is_missed_where_its_side_has_no_other(
    limit, state, runs, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(speed, "_SHORTEST_RUN_SECONDS", 1.0)
    found = speed.compared("CPU", 2, limit)
    assert runs[-1][0] == "stock"
    assert found.state == state and not found.details["failures"]
    assert ("no time of stock" in found.said) == (state == "failed")


def test_a_side_without_a_time_is_named(runs, monkeypatch):
    process = speed.run_for_json

    def some(module, words, *args, **options):
        done = process(module, words, *args, **options)
        return ChildFailure("python", "failed", "why") if "stock" in words else done

    monkeypatch.setattr(speed, "run_for_json", some)
    found = speed.compared("CPU", 2, 1e6)
    assert found.state == "failed" and "no time of stock" in found.said
    assert "why" in found.details["failures"][0]
