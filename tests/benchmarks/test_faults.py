"""Runs under faults: what is drawn, what is told of it, and one real run under a new draw."""

import collections
import itertools
import json
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import faults, faults_links, faults_run, faults_training
from benchmarks.faults_training import CUTS, KINDS, PHASES


@given(seed=st.integers(0, 10**6), runs=st.integers(1, 30), each=st.integers(1, 6))
def test_every_fault_can_come(seed, runs, each):
    drawn = faults.drawn(seed, runs, each, [2, 3])
    assert drawn == faults.drawn(seed, runs, each, [2, 3])
    assert [len(run) for run in drawn] == [each] * runs
    kinds = collections.Counter(fault["kind"] for run in drawn for fault in run)
    assert max(kinds.values()) - min(kinds[kind] for kind in KINDS) <= 1
    for number, run in enumerate(drawn):
        assert all(fault["rank"] < [2, 3][number % 2] for fault in run)
        assert all(fault["phase"] != "end" for fault in run[:-1])
        for before, fault in itertools.pairwise(run):
            if before["kind"] == "full disk":
                assert fault["phase"] in ("step", "evaluate", "end")
        assert all(f["rank"] == 0 for f in run if f["phase"] == "save" or f["kind"] == "full disk")


def test_a_draw_of_the_default_size_hits_each_phase_five_times():
    for seed in range(20):
        drawn = faults.drawn(seed, 20, 5, [2, 3])
        phases = collections.Counter(fault["phase"] for run in drawn for fault in run)
        assert min(phases[phase] for phase in PHASES) >= 5


def test_kinds_and_phases_can_be_chosen():
    drawn = faults.drawn(5, 6, 2, [2], kinds=["kill"], phases=["step", "save"])
    chosen = [(fault["kind"], fault["phase"]) for run in drawn for fault in run]
    assert sorted(set(chosen)) == [("kill", "save"), ("kill", "step")]
    drawn = faults.drawn(5, 2, 1, [2], phases=["end"])
    assert [fault["phase"] for run in drawn for fault in run] == ["end", "end"]


def test_a_run_s_own_start_is_the_measure_unless_a_fault_came_in_it(monkeypatch):
    def told(**fault):
        fault = {"kind": "kill", "rank": 0, "skip": 0, **fault}
        run = faults_run.Run([(fault, 9.0)], "same", 7.0, 2, 0)
        return faults._told(Console(), "1", run, faults_run.Run([], "same", 5.0, 1, 0)).first_step

    assert told(phase="start") == told(phase="trace") == told(phase="step") == 5.0
    assert told(phase="step", skip=1) == told(phase="save") == 7.0


def test_faults_of_elastic_runs_change_the_number_of_ranks():
    drawn = faults.drawn(7, 20, 5, [2, 3], elastic=True)
    slots = {(number % 2, fault["slots"]) for number, run in enumerate(drawn) for fault in run}
    assert slots == {(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)}


def test_no_rank_is_stopped_where_the_others_may_have_ended(tmp_path, monkeypatch):
    inflicted = []

    class AtOnce:
        def __init__(self, delay, act, arguments):
            self.start = lambda: inflicted.append(arguments[1])

    monkeypatch.setattr(faults_training.threading, "Timer", AtOnce)
    for phase in PHASES:
        fault = {"phase": phase, "rank": 0, "skip": 0, "delay": 0.0, "kind": "stop"}
        faults_training.Injector(tmp_path, 0, 2, [fault]).phase(phase)
    assert inflicted == ["stop", "stop", "stop", "kill", "stop", "kill"]


def test_the_time_to_the_next_step_is_told_unless_another_fault_came_before(tmp_path):
    kinds = ["kill", "kill", "full disk", "usr1"]
    for number, when in enumerate([10.0, 12.0, 30.0, 40.0]):
        (tmp_path / f"fault-{number}").write_text(str(when))
    steps = [9.9, 10.1, 20.5, 20.6, 41.0, 47.0]  # 10.1 and 41.0 were on their way
    told = faults_run._with_recoveries(tmp_path, [{"kind": kind} for kind in kinds], steps)
    assert [took for _, took in told] == [None, 8.5, None, 7.0]


def test_the_processes_of_a_run_are_found_until_they_end():
    name = f"a run {random.random()}"
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={faults_run._RUN: name}
    )
    try:
        assert faults_run._processes_of(name) == [child.pid]
    finally:
        child.communicate(b"\n")
    assert faults_run._left(name) == 0


@pytest.mark.multiprocess
@pytest.mark.timeout(900)
@pytest.mark.exhaustive("test_every_fault_can_come")
@pytest.mark.parametrize("elastic", [False, True])
def test_a_run_under_another_draw_each_time_ends_with_the_same_bits(elastic, capsys):
    options = faults.FaultsOptions(runs=1, faults=2, processes=(2,), elastic=elastic, cut_runs=0)
    assert faults.run(options) == 0, capsys.readouterr().out  # it begins with the seed
    said = capsys.readouterr().out
    assert ("the same weights within 1e-5" if elastic else "the same bits") in said
    assert json.loads(said.split()[1]) >= 0


def test_every_cut_can_come_to_every_start():
    drawn = {
        (start, fault["kind"])
        for seed in range(30)
        for start, (fault,) in faults_links.drawn(seed, 3)
    }
    assert drawn == {(start, kind) for start in faults_links.STARTS for kind in CUTS}


@pytest.mark.multiprocess
@pytest.mark.timeout(1800)
@pytest.mark.skipif(faults_links.why_not() is not None, reason="needs root, ip and tc")
@pytest.mark.exhaustive("test_every_fault_can_come")
def test_a_run_whose_link_is_cut_ends_with_the_same_bits(capsys, monkeypatch):
    start = random.choice(faults_links.STARTS)  # another one each time, as the cut
    monkeypatch.setattr(faults_links, "STARTS", [start])
    ends = "the same weights within 1e-5" if ":" in start else "the same bits"
    assert faults.run(faults.FaultsOptions(runs=0, cut_runs=1)) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert said.count(ends) == 1


def test_without_rights_no_link_is_cut_and_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(faults_links.hosts.os, "geteuid", lambda: 1000)
    assert faults.run(faults.FaultsOptions(runs=0, cut_runs=3)) == 0
    assert "No link is cut: `--hosts` must be run by root" in capsys.readouterr().out
