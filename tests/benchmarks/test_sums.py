"""`benchmarks sums`: what it can be asked for, what it starts, and a run on simulated hosts."""

import json
import sys

import measured_sums
import pytest

from benchmarks import hosts, on_host, sums
from benchmarks.__main__ import main
from benchmarks.sums import SumsOptions, parse_rate
from tfdp.tools.bench import bench_rounds


@pytest.mark.parametrize("text", ["", "0mbit", "200", "200MB"])
def test_no_rate_is_refused_with_the_fix(text):
    with pytest.raises(ValueError, match=r"do `--rate 200mbit`"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"sides": ("rign",)}, r"`topology` must be some of .*, or all; received 'rign'"),
        ({"rate": "200mbit"}, r"`rate` must come with hosts"),
        ({"order": (0, 1)}, r"`order` must come with hosts"),
        ({"processes": 4, "hosts": 5}, r"from 2 to the number of processes, 4"),
        ({"processes": 4, "hosts": 2, "order": (0, 1, 0)}, r"once for each of the 4 ranks"),
        ({"processes": 2, "hosts": 2, "order": (1, 1)}, r"each of the hosts 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(choices, message):
    with pytest.raises(ValueError, match=message):
        SumsOptions(**choices)


def test_ranks_fill_the_hosts_in_turn_or_as_they_are_told():
    assert SumsOptions(processes=5, hosts=2).host_of_ranks == (0, 0, 0, 1, 1)
    assert SumsOptions(processes=3, hosts=2, order=(1, 0, 1)).host_of_ranks == (1, 0, 1)


def test_topologies_of_an_engine_share_processes_and_others_have_their_own():
    runs = SumsOptions(sides=("ring", "stock", "tree", "gloo", "mpi4py", "graph")).runs
    own = ("ring", "tree")
    assert [(run.engine, run.sides) for run in runs[:2]] == [("tensorflow", own), ("mpi", own)]
    assert [run.engine for run in runs[2:]] == ["stock", "gloo", "mpi4py", "graph"]
    assert [run.launcher for run in runs] == [(), (mpi := ("--engine", "mpi")), (), (), mpi, mpi]
    assert [run.needs for run in runs[3:]] == ["torch", "mpi4py", "mpi4py"]
    assert [run.command[0] == "env" for run in runs] == [False, False, True, False, False, False]
    assert all(run.command[-1] == "benchmarks.sums_rank" for run in runs)
    assert [run.engine for run in SumsOptions(sides=("gloo",)).runs] == ["gloo"]


def test_ranks_are_brought_to_the_hosts_that_are_built(monkeypatch):
    started = []
    monkeypatch.setattr(bench_rounds, "run_rounds", lambda *given: started.append(given) or 0)
    monkeypatch.setattr(sums, "_link_rate", lambda namespaces: 1e6 * len(namespaces))

    class Built:
        def __init__(self, count, rate):
            assert (count, rate) == (2, "200mbit")

        def __enter__(self):
            return ["h0", "h1"]

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(hosts, "hosts", Built)
    words = "--hosts 2 --processes 4 --rate 200mbit --order 0,1,0,1 --topology ring,stock"
    assert main(["sums", *words.split()]) == 0
    ((_, runs, bound),) = started
    placed = ["-m", "benchmarks.on_host", "h0,h1", "0,1,0,1"]
    assert all(list(run.command[1:5]) == placed for run in runs)
    assert [run.command[5] == "env" for run in runs] == [False, False, True]
    assert (bound.bytes_per_second, bound.ends, bound.ranks, bound.limit) == (2e6, 2, 4, "200mbit")


def test_a_rank_knows_whether_it_is_on_a_host(monkeypatch):
    assert not on_host.is_on_host()
    monkeypatch.setattr(sys, "argv", ["on_host", "h0,h1", "0,1", "hostname"])
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {}, "task": {"index": 1}}))
    executed = []

    class OfProcess(dict):
        pass

    monkeypatch.setattr(on_host.os, "environ", OfProcess(on_host.os.environ))
    monkeypatch.setattr(on_host.os, "execvp", lambda name, words: executed.append(words))
    on_host.main()
    assert executed == [["ip", "netns", "exec", "h1", "hostname"]]
    assert on_host.is_on_host()
    workers = json.loads(on_host.os.environ["TF_CONFIG"])["cluster"]["worker"]
    assert workers == ["10.77.0.1:20870", "10.77.0.2:20871"]


@pytest.mark.multiprocess
def test_a_run_measures_prints_draws_and_keeps(tmp_path):
    words = "--topology ring,stock --engine tensorflow --sizes 1KB --rounds 1 --repeats 2"
    results, _ = measured_sums.run("benchmarks sums", words, tmp_path)
    assert [result["side"] for result in results] == ["ring", "stock"]
    assert not any(result["link_bytes"] for result in results)
