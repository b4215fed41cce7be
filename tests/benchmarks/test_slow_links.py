"""`benchmarks slow-links`: what it starts, and what its table says of the times."""

import io
import json

import pytest
from rich.console import Console

from benchmarks import slow_links
from benchmarks.__main__ import main
from benchmarks.sending import arguments_of
from benchmarks.slow_links import ARGUMENTS, NOTHING_SENT, SlowLinksOptions
from tests.benchmarks.test_hosts import needs_hosts
from tfdp.tools.bench.child_process import ChildFailure

SECONDS = {"": 2.1, "compression=Int8()": 0.6, NOTHING_SENT: 0.1}


@pytest.fixture
def started(monkeypatch):
    """Replaces hosts and processes; returns the command lines."""
    commands = []

    class Hosts:
        def __enter__(self):
            return ["h0", "h1"]

        def __exit__(self, *error):
            pass

    def start(module, words, timeout_seconds, prefix):
        commands.append(words)
        strategy = words[words.index("--strategy") + 1]
        if strategy not in SECONDS:
            return ChildFailure("python -m x", "exited with status 1", "[the cause]")
        return {
            "parameters": 10_000_000,
            "seconds_per_step": SECONDS[strategy],
            "processor_seconds_per_step": SECONDS[strategy] / 4,
            "bytes_per_step": [1e6, 3e6],
        }

    monkeypatch.setattr(slow_links.hosts, "hosts", lambda count, rate: Hosts())
    monkeypatch.setattr(slow_links.link_rate, "measure", lambda *words: 20e6)
    monkeypatch.setattr(slow_links, "run_for_json", start)
    return commands


def printed(options):
    console = Console(file=io.StringIO(), width=80)
    code = slow_links.run(options, console)
    return code, console.file.getvalue()


def test_the_table_takes_the_step_that_sends_nothing_from_the_others(started):
    code, table = printed(SlowLinksOptions(host_of_ranks=(0, 0, 1, 1), only=(0, 2), rounds=2))
    rows = [" ".join(line.split()) for line in table.splitlines()]
    assert code == 0
    assert "whole gradients 2.100 2.000 1.000 3.00 0.525 2.100-2.100" in rows
    assert "Int8() 0.600 0.500 0.250 3.00 0.150 0.600-0.600" in rows
    assert "nothing 0.100 3.00 0.025 0.100-0.100" in rows
    assert "the bound of these is 2.00 s" in " ".join(rows), "40 MB, once each way, at 20 MB/s"
    assert len(started) == 6
    on_hosts = ["benchmarks.on_host", "h0,h1", "0,0,1,1"]
    assert all(" ".join(on_hosts) in " ".join(words) for words in started)


def test_mpi_starts_the_ranks_of_its_engine(started):
    printed(SlowLinksOptions(host_of_ranks=(0, 1), engine="mpi", only=(0,)))
    assert all(words[:5] == ["run", "-n", "2", "--engine", "mpi"] for words in started)


def test_a_failed_run_is_shown_and_the_others_are_measured(started, tmp_path):
    path = tmp_path / "raw.json"
    code, table = printed(SlowLinksOptions(host_of_ranks=(0, 1), only=(1, 2), json=path))
    assert code == 1
    assert "[the cause]" in table and "failed" in table
    content = json.loads(path.read_text())
    assert len(content["results"]) == 2 and len(content["failures"]) == 1
    assert content["options"]["bytes_per_second"] == 20e6


def test_every_row_is_an_argument_of_the_strategy():
    for arguments in ARGUMENTS:
        assert arguments_of(arguments).keys() <= {"compression", "synchronization"}
    assert arguments_of(NOTHING_SENT)["synchronization"].every == 10**6


@needs_hosts
@pytest.mark.multiprocess
@pytest.mark.exhaustive("test_the_table_takes_the_step_that_sends_nothing_from_the_others")
def test_ranks_train_over_their_links_and_send_what_the_table_says(tmp_path):
    path = tmp_path / "raw.json"
    words = ["--order", "0,1", "--model", "transformer", "--only", "0,2", "--rate", "800mbit"]
    assert main(["slow-links", *words, "--json", str(path)]) == 0
    whole, int8, nothing = json.loads(path.read_text())["results"]
    gradients = 4 * whole["parameters"]
    assert gradients < max(whole["bytes_per_step"]) < 1.1 * gradients
    assert 0.2 * gradients < max(int8["bytes_per_step"]) < 0.35 * gradients
    assert max(nothing["bytes_per_step"]) < 0.01 * gradients
    assert whole["processor_seconds_per_step"] > 0
