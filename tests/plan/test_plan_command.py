"""`tfdp plan`: from the command line to the page, and what it refuses."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from report.logs import write_run

from tfdp.cli import main

BUYING = ["--parameters", "25.6M", "--examples-per-second", "220", "--link", "10gbit,50us"]


def planned(capsys, *words):
    code = main(["plan", *words])
    captured = capsys.readouterr()
    assert code == 0
    return " ".join(captured.out.split())


def refused(capsys, *words):
    with pytest.raises(SystemExit) as exit_:
        main(["plan", *words])
    assert exit_.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_newcomer_learns_whether_a_second_host_pays(capsys):
    said = planned(capsys, *BUYING, "-n", "1,2")
    assert re.search(r"From 1 to 2 hosts: 1\.\d\d times .* of 2 at best: pays", said)
    assert "Use: strategy = tfdp.DataParallelStrategy(" in said
    slow = planned(capsys, *BUYING[:4], "--link", "100mbit,1ms", "-n", "1,2")
    assert re.search(r"From 1 to 2 hosts: 0\.\d\d times .*: does not pay", slow)


def test_and_from_how_many_ranks_on_adam_s_state_fits(capsys):
    """1.2 B weights: 4.8 GB, as many of gradients, twice as many of Adam's."""
    words = ["--parameters", "1.2B", "--optimizer", "adam", "--memory", "8GB", "-n", "1"]
    assert "on no number of ranks; try `--shard gradients`" in planned(capsys, *words)
    said = planned(capsys, *words, "--shard", "gradients")
    # 4.8 + 4.8 / n + 9.6 / n, and two buckets of 96 MB.
    assert 'from 5 ranks on with shard="gradients"' in said


def test_the_logs_of_a_run_say_what_is_computed_and_what_the_links_gave(tmp_path, capsys):
    logs = write_run(tmp_path / "logs", communication=0.2)
    page = tmp_path / "plan.html"
    said = planned(capsys, "--logs", str(logs), "-n", "1,2,4,8", "--output", str(page))
    assert "1,626,442 weights" in said and "those that explain the logs' communication" in said
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "Efficiency" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)


def test_measured_links_are_taken(tmp_path, capsys):
    path = tmp_path / "links.json"
    links = {
        "latency_seconds_inside": 1e-4,
        "bytes_per_second_inside": 1e9,
        "latency_seconds_between": 1e-3,
        "bytes_per_second_between": 1e8,
    }
    path.write_text(json.dumps({"hosts": [0, 1], "links": links}))
    words = ["--parameters", "25.6M", "--examples-per-second", "220", "-n", "2"]
    assert f"Links: measured, in {path}." in planned(capsys, *words, "--links", str(path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "One of `--model`, `--parameters` and `--logs` must say"),
        (["--parameters", "9"], "`parameters` must come with what a rank computes"),
        ([*BUYING, "-n", "0"], "from 1 to 65,536, but received 0"),
        ([*BUYING, "-n", "1000000"], "from 1 to 65,536, but received 1,000,000"),
        ([*BUYING, "-n", "12", "--ranks-per-host", "8"], "Use 8 or 16"),
        ([*BUYING, "--inside", "1gbit,1us"], "at least as near as those of two hosts"),
        ([*BUYING, "--links", "x.json"], "must not both describe the links"),
        ([*BUYING[:4], "--links", "no.json"], "`tfdp run -n 2 -- tfdp doctor --json links.json`"),
        ([*BUYING[:4], "--link", "fast"], "write it as 25gbit,50us"),
        ([*BUYING[:4], "--link", "10gbit"], "write it as 25gbit,50us"),
        (["--logs", "no/logs"], "must be a directory that"),
        (["--model", "no.such:model", *BUYING[2:4]], "which fails (ModuleNotFoundError"),
        (["--model", "NoSuchNet", *BUYING[2:4]], "keras.applications has no NoSuchNet"),
    ],
)
def test_a_refusal_says_what_to_do(capsys, words, says):
    assert says in refused(capsys, *words)


MODEL = """
import keras

def small():
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model

def nothing():
    return 7

def unshaped():
    return keras.Sequential([keras.Input([None, 8]), keras.layers.LSTM(4)])

def without_weights():
    return keras.Sequential([keras.Input([8]), keras.layers.ReLU()])
"""


@pytest.mark.slow
def test_a_model_is_built_and_timed(tmp_path):
    (tmp_path / "train.py").write_text(MODEL)
    done = subprocess.run(
        [sys.executable, "-m", "tfdp.cli", "plan", "--model", "train.py:small", "-n", "1,2"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "641 weights" in done.stdout and "timed on this machine" in done.stdout
    assert "From 1 to 2 hosts" in done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "which returns int"),
        ("missing", "has no attribute 'missing'"),
        ("unshaped", "inputs of known shapes"),
        ("without_weights", "have weights that are trained"),
    ],
)
def test_a_model_that_cannot_be_planned_for_is_refused(tmp_path, capsys, name, says):
    (tmp_path / "train.py").write_text(MODEL)
    assert says in refused(capsys, "--model", f"{tmp_path}/train.py:{name}")


def test_the_logs_of_another_model_are_refused(tmp_path, capsys):
    (tmp_path / "train.py").write_text(MODEL)
    logs = write_run(tmp_path / "logs")
    said = refused(capsys, "--model", f"{tmp_path}/train.py:small", "--logs", str(logs))
    assert "trains 641 weights" in said and "one that trained 1,626,442" in said
