"""The path of a rank's death is the one that the page "Where things live" draws."""

import collections
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.multiprocess]

TESTS = pathlib.Path(__file__).parent
SCRIPT = TESTS / "scripts" / "traced_death.py"
PAGE = (TESTS.parent / "docs/architecture/README.md").read_text()
MOST_MODULES = 12

SUPERVISOR, LAUNCHER = "in the supervisor of the lost rank", "in the launcher"
CONNECTIONS = "in the thread of connections of each other rank"
TRAINING = "in the thread that trains, there"

# What runs meanwhile and carries nothing of the news.
BESIDE = {
    "base/": "texts, files and hooks of all kinds",
    "cluster/wire": "the bytes of every message",
    "cluster/watchdog": "signs of life, once a second",
    "cluster/launch/launcher": "whether the run is to end, once a second",
    "cluster/launch/output_lines": "the lines of whatever a rank writes",
    "cluster/launch/hangs": "whether a rank hangs, once a second",
    "cluster/launch/places": "how many ranks may run, once a second and in the next attempt",
    "cluster/launch/rank_start": "the numbers and the ports of the attempt's ranks",
    "communication/collectives/collective_failure": "any error of a step",
    "communication/collectives/data_mismatch": "any error of a step",
    "communication/replicas/": "any error of a step",
    "communication/engines/": "counts of collectives, and the engine that is not in use",
    "data/": "the batches, and the contexts that an error of a step leaves",
    "keras/": "the contexts that an error of a step leaves",
    "partition/": "the lines of the program that an error of a step comes from",
    "strategy/": "the contexts that an error of a step leaves",
}


def drawn():
    """The page's functions, by where they run."""
    section = PAGE.partition("## The path of a rank's death")[2]
    block = re.search(r"```text\n(.*?)```", section, re.DOTALL)[1]
    found, where = {}, ""
    for line in block.splitlines():
        if line.startswith(" "):
            found[where].append(line.split()[0])
        else:
            where = line
            found[where] = []
    return found


def first_calls(calls):
    """Each function once, in the order of their first calls."""
    return list(dict.fromkeys(calls))


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The functions that were called after a kill, by where they ran; and what the run said."""
    folder = tmp_path_factory.mktemp("death")
    done = subprocess.run(
        [sys.executable, SCRIPT, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed_at = float((folder / "killed").read_text())
    calls = collections.defaultdict(list)
    for path in folder.glob("*.calls"):
        for line in path.read_text().splitlines():
            at, thread, called = line.split()
            if float(at) >= killed_at:
                calls[path.stem, thread].append(called)
    launcher = calls["launcher", "MainThread"]
    began = launcher.index("cluster/launch/rank_process:read_report")
    of_threads = {
        SUPERVISOR: calls["supervisor-1", "MainThread"],
        LAUNCHER: launcher[began : launcher.index("cluster/launch/places:wait_for_places")],
        CONNECTIONS: calls["rank-0", "tfdp-board"],
        TRAINING: calls["rank-0", "MainThread"],
    }
    return of_threads, done.stdout + done.stderr


def test_the_run_names_the_rank_and_starts_again(traced):
    said = traced[1]
    assert "rank 1 of 2 failed first, with signal SIGKILL." in said
    assert "tfdp.errors.RankLostError: Rank 0: lost rank 1: its connection broke" in said
    assert "2. 2 ranks, after" in said


@pytest.mark.parametrize("where", [SUPERVISOR, LAUNCHER, CONNECTIONS, TRAINING])
def test_the_functions_of_the_path_are_called_in_its_order(traced, where):
    path = drawn()[where]
    assert [call for call in first_calls(traced[0][where]) if call in path] == path


def test_no_other_module_is_on_the_path_and_few_are():
    modules = {call.partition(":")[0] for path in drawn().values() for call in path}
    assert len(modules) <= MOST_MODULES


def test_what_else_runs_meanwhile_is_named(traced):
    on_path = tuple(f"{call.partition(':')[0]}:" for path in drawn().values() for call in path)
    beside = tuple(name if name.endswith("/") else f"{name}:" for name in BESIDE)
    calls = {call for of_thread in traced[0].values() for call in of_thread}
    assert not [call for call in sorted(calls) if not call.startswith(on_path + beside)]
