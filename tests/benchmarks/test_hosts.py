"""Hosts as network namespaces, and what runs on them."""

import json
import os
import subprocess
import sys
import time

import pytest

from benchmarks import hosts
from tfdp.tools.bench import link_rate


def can_build():
    try:
        with hosts.hosts(2, None):
            return True
    except hosts.HostsError:
        return False


needs_hosts = pytest.mark.skipif(not can_build(), reason="needs root, ip and tc")


def built():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith("tfdp-bench-")]


@needs_hosts
def test_a_link_carries_what_its_limit_says():
    with hosts.hosts(2, "80mbit") as (first, second):
        sender, receiver = hosts.inside(first, []), hosts.inside(second, [])
        rate = link_rate.measure(sender, receiver, hosts.address(1), seconds=1.0)
    assert 6e6 < rate < 12e6


@needs_hosts
def test_a_host_is_cut_off_and_joined_again():
    with hosts.hosts(2, None) as (first, second):
        ping = hosts.inside(first, ["bash", "-c", f"echo > /dev/tcp/{hosts.address(1)}/9"])

        def said():
            done = subprocess.run(["timeout", "1", *ping], capture_output=True, text=True)
            return done.returncode, done.stderr

        assert "Connection refused" in said()[1]
        hosts.set_link(second, up=False)
        assert "Connection refused" not in said()[1]
        hosts.set_link(second, up=True)
        deadline = time.monotonic() + 120
        while "Connection refused" not in said()[1]:
            assert time.monotonic() < deadline


@needs_hosts
def test_hosts_are_taken_down_after_a_failure_too():
    before = built()
    with pytest.raises(ZeroDivisionError), hosts.hosts(2, None):
        assert len(built()) == len(before) + 3
        raise ZeroDivisionError
    assert built() == before


@needs_hosts
def test_what_a_killed_run_left_is_taken_down_by_the_next():
    code = (
        "import os; from benchmarks import hosts\n"
        "with hosts.hosts(2, None) as names: print(names[0], flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    left = killed.stdout.strip()
    assert left in "".join(built())
    with hosts.hosts(2, None):
        assert left not in "".join(built())


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(hosts.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(hosts.HostsError, match=r"must be run by root.*received user 1000"):
        hosts.hosts(2, None).__enter__()


def test_without_the_tools_it_names_them(monkeypatch):
    monkeypatch.setattr(hosts.shutil, "which", lambda tool: None)
    with pytest.raises(hosts.HostsError, match=r"without ip and tc; install iproute2"):
        hosts.hosts(2, None).__enter__()


@needs_hosts
@pytest.mark.multiprocess
@pytest.mark.exhaustive("benchmarks/test_sums.py::test_a_run_measures_prints_draws_and_keeps")
def test_sums_between_hosts_are_right_and_the_bytes_of_a_link_are_kept(tmp_path):
    words = "--topology ring,auto,stock --engine tensorflow --sizes 1MB --rounds 1 --repeats 2"
    words += " --hosts 2 --order 1,0"
    files = ["--output", str(tmp_path / "x.png"), "--json", str(tmp_path / "x.json")]
    command = [sys.executable, "-m", "benchmarks", "sums", *words.split(), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "x.json").read_text())["results"]
    assert [result["side"] for result in results] == ["ring", "auto", "stock"]
    assert all(result["right"] for result in results)
    assert all(count > 10**6 for result in results for count in result["link_bytes"])
