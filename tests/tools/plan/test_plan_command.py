"""`tfdp plan`: from the command line to the page, and what it refuses."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import pytest
from tools.report.logs import write_run

from tfdp.tools.cli import main
from tfdp.tools.plan import plan_inputs, quantities
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.topology import Links

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


MEMORY = ["--parameters", "1.2B", "--optimizer", "adam", "--memory"]


@pytest.mark.slow
def test_and_from_how_many_ranks_on_adam_s_state_fits(capsys):
    """1.2 B weights: 4.8 GB, as many of gradients, twice as many of Adam's."""
    said = planned(capsys, *MEMORY, "8GB", "--shard", "optimizer")
    assert "All of it fits into 8 GB on no number of ranks" in said
    assert 'by itself fits into 8 GB from 2 ranks on with shard="optimizer"' in said
    # 4.8 + 4.8 + 9.6 / n, and two buckets of 96 MB.
    said = planned(capsys, *MEMORY, "12GB", "--shard", "optimizer")
    assert 'All of it fits into 12 GB from 5 ranks on with shard="optimizer"' in said
    said = planned(capsys, *MEMORY, "8GB")
    assert "`--shard optimizer` divides" in said and "activations not counted" in said


def test_a_compression_beside_shards_is_planned_or_refused(capsys):
    """4.8 GB of gradients and of what is left of them, four buckets of 96 MB, and 14.4 / n."""
    words = ["--shard", "parameters", "--compression"]
    said = planned(capsys, *MEMORY, "12GB", *words, "int8")
    assert 'All of it fits into 12 GB from 8 ranks on with shard="parameters"' in said
    said = planned(capsys, *BUYING, "-n", "4", *words, "bfloat16")
    assert 'compression=tfdp.compression.Cast("bfloat16"), shard="parameters")' in said
    said = refused(capsys, *BUYING, "-n", "4", *words, "topk")
    assert "A compression beside `shard` must be one of none, bfloat16, int8" in said


def test_a_question_of_memory_has_a_page_without_times(tmp_path, capsys):
    page = tmp_path / "plan.html"
    planned(capsys, *MEMORY, "8GB", "--shard", "gradients", "--output", str(page))
    assert "All of it fits" in page.read_text() and "Efficiency" not in page.read_text()


def test_what_fits_on_one_rank_alone_is_told(capsys):
    """16.8 GB alone, and two copies of a bucket of 84 MB among more."""
    said = planned(capsys, "--parameters", "1.05B", "--memory", "16.85GB", "-n", "2")
    assert "All of it fits into 16.9 GB on no number of ranks." in said
    assert "One rank alone fits: it sends nothing." in said


def test_every_topology_and_way_to_send_less_has_a_row(capsys):
    said = planned(capsys, *BUYING, "-n", "4", "--ranks-per-host", "2")
    rows = said.partition("arguments")[2]
    for name in ("direct", "halving_doubling", "torus", "tree", "hierarchical", "ring", "auto"):
        assert f'topology="{name}"' in rows
    for word in ("Cast(", "Int8(", "PowerSGD(", "LocalSGD(10)", "LocalSGD(100)"):
        assert word in rows


def test_what_to_use_is_the_first_row(capsys):
    for link in ("10gbit,50us", "100mbit,1ms"):
        said = planned(capsys, *BUYING[:4], "--link", link, "-n", "4")
        row = said.partition("arguments")[2].split(" same ")[1].split(")")[0]
        assert said.partition("Use: strategy = ")[2].split(")")[0] == row.strip()


def test_links_that_nobody_described_are_named(capsys):
    said = planned(capsys, *BUYING[:4], "-n", "2")
    assert "Links: assumed: 10 Gbit/s and 50 us between hosts; `--link` says otherwise." in said
    planned(capsys, *BUYING[:4], "--inside", "5gbit,100us", "-n", "2", "--ranks-per-host", "2")


def test_one_rank_is_in_the_singular_and_does_not_wait(capsys):
    said = planned(capsys, *BUYING, "-n", "1", "--deviation", "0.5")
    assert "What limits 1 rank," in said and "Plans for 1 rank " in said
    assert re.search(r"1 1 145 ms 220 100%", said)


@pytest.fixture
def logs(tmp_path):
    return write_run(tmp_path / "logs", communication=0.2, gradient_accumulation_steps=4)


def test_the_logs_of_a_run_say_what_is_computed_and_what_the_links_gave(tmp_path, capsys, logs):
    page = tmp_path / "plan.html"
    said = planned(capsys, "--logs", str(logs), "-n", "4,8,16", "--output", str(page))
    assert "1,626,442 weights" in said and "those that explain the logs' communication" in said
    assert "From 1 to 2 hosts" in said  # four replicas of a host, as in the logs
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "Efficiency" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)


def test_the_logs_accumulation_is_kept(capsys, logs):
    def held(*words):
        said = planned(capsys, "--logs", str(logs), "-n", "4", *words)
        return re.search(r"gradients ([\d.]+) MB", said)[1]

    assert float(held()) == pytest.approx(2 * float(held("--accumulation", "1")), rel=0.01)


def test_links_between_hosts_are_not_those_of_one_host(tmp_path, capsys):
    logs = str(write_run(tmp_path, ranks=2))
    assert "Describe the links by `--link" in refused(capsys, "--logs", logs, "-n", "4,8")
    planned(capsys, "--logs", logs, "-n", "4,8", "--link", "10gbit,50us")


LINKS = {
    "latency_seconds_inside": 1e-4,
    "bytes_per_second_inside": 1e9,
    "latency_seconds_between": 1e-3,
    "bytes_per_second_between": 1e8,
}
RATE = ["--parameters", "25.6M", "--examples-per-second", "220"]


def links_file(path, hosts, **changed):
    path.write_text(json.dumps({"hosts": hosts, "links": LINKS | changed}))
    return str(path)


def test_measured_links_are_of_the_hosts_that_they_were_measured_on(tmp_path, capsys):
    alone = links_file(tmp_path / "links.json", [0, 0])
    said = refused(capsys, *RATE, "--links", alone, "-n", "4")
    assert "2 hosts of 2 ranks, but" in said and "has 1 of 2" in said
    assert "From 1 to 2 ranks" in planned(capsys, *RATE, "--links", alone, "-n", "1,2")
    apart = links_file(tmp_path / "apart.json", [0, 1])
    said = refused(capsys, *RATE, "--links", apart, "-n", "4", "--ranks-per-host", "2")
    assert "links inside a host must be measured" in said


def test_a_described_link_joins_hosts_like_the_one_whose_links_were_measured(tmp_path, capsys):
    """Of 700 Mbit/s headers and the ends of transfers leave 0.936 times 0.91."""
    alone = links_file(tmp_path / "links.json", [0, 0], operation_seconds=1e-3)
    options = PlanOptions(
        parameters=25_600_000,
        examples_per_second=220.0,
        links=pathlib.Path(alone),
        link=quantities.link("700mbit,2ms"),
    )
    read = plan_inputs.read(options)
    assert plan_inputs.cluster(options, read, 2).links == Links(**LINKS, operation_seconds=1e-3)
    found = plan_inputs.cluster(options, read, 4).links
    assert found.latency_seconds_between == pytest.approx(1e-4 + 2e-3)
    assert found.bytes_per_second_between == pytest.approx(0.936 * 0.91 * 87.5e6, rel=0.001)
    assert (found.bytes_per_second_inside, found.operation_seconds) == (1e9, 1e-3)
    fast = dataclasses.replace(options, link=quantities.link("100gbit,1us"))
    assert plan_inputs.cluster(fast, read, 4).links.bytes_per_second_between == 1e9
    said = planned(capsys, *RATE, "--links", alone, "--link", "700mbit,2ms", "-n", "2,4")
    assert f"Links: measured, in {alone}; between hosts as described." in said
    assert "From 1 to 2 hosts" in said


def test_a_described_link_beside_one_that_was_measured_is_refused(tmp_path, capsys):
    apart = links_file(tmp_path / "apart.json", [0, 1])
    said = refused(capsys, *RATE, "--links", apart, "--link", "10gbit,50us", "-n", "2")
    assert "`link` must describe links that were not measured" in said
    assert "between 2 hosts; leave `--link` out" in said


def test_measured_links_are_taken(tmp_path, capsys):
    path = links_file(tmp_path / "links.json", [0, 1])
    assert f"Links: measured, in {path}." in planned(capsys, *RATE, "-n", "2", "--links", path)


@pytest.mark.parametrize(
    ("hosts", "changed"),
    [
        ([0, 0, 1, 1], {"bytes_per_second_inside": 1e7}),
        ([0, 1], {"bytes_per_second_between": 10**400}),
        ([0, 1], {"speed": 1.0}),
        ([], {}),
    ],
)
def test_links_that_contradict_each_other_or_are_none_are_refused(tmp_path, capsys, hosts, changed):
    path = links_file(tmp_path / "links.json", hosts, **changed)
    assert "`links` must be a file that" in refused(capsys, *RATE, "-n", "2", "--links", path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "One of `--model`, `--parameters` and `--logs` must say"),
        (["--parameters", "9"], "`parameters` must come with what a rank computes"),
        ([*BUYING, "-n", "0"], "from 1 to 512, but received 0"),
        ([*BUYING, "-n", "two"], "do `-n 1,2,4,8,16`"),
        ([*BUYING, "-n", "1000000"], "from 1 to 512, but received 1,000,000"),
        ([*BUYING, "-n", "12", "--ranks-per-host", "8"], "Use 8 or 16"),
        ([*BUYING, "--inside", "1gbit,1us"], "at least as near as those of two hosts"),
        ([*RATE, "--inside", "1gbit,1us", "--links", "x.json"], "leave `--inside` out"),
        ([*BUYING[:4], "--links", "no.json"], "`tfdp run -n 2 -- tfdp doctor --json links.json`"),
        ([*BUYING[:4], "--link", "fast"], "write it as 25gbit,50us"),
        ([*BUYING[:4], "--link", "10gbit"], "write it as 25gbit,50us"),
        ([*BUYING[:4], "--link", "9" * 400 + "gbit,1us"], "write it as 25gbit,50us"),
        (["--logs", "no/logs"], "must be a directory that"),
        (["--logs", "no/logs", "--parameters", "1B"], "leave `--parameters` out"),
        (["--logs", "no/logs", "--engine", "nccl"], "leave `--engine` out"),
        ([*BUYING[:4], "--links", "x.json", "--engine", "nccl"], "leave `--engine` out"),
        ([*BUYING[:2], "--examples-per-second", "inf"], "must be finite"),
        ([*BUYING, "--batch", "9" * 400], "`batch` must be"),
        (["--parameters", "0.4", *BUYING[2:]], "must be from 1 to"),
        (["--parameters", "9" * 400, *BUYING[2:]], "write it as 350M"),
        ([*BUYING, "--memory", "8Gb"], "write it as 8GB"),
        (["--model", "no.such:model", *BUYING[2:4]], "which fails (ModuleNotFoundError"),
        (["--model", "train.py", *BUYING[2:4]], "returns the model: train.py:build_model"),
        (["--model", "NoSuchNet", *BUYING[2:4]], "keras.applications has no NoSuchNet"),
    ],
)
def test_a_refusal_says_what_to_do(capsys, words, says):
    assert says in refused(capsys, *words)


MODEL = """
import dataclasses
import keras

@dataclasses.dataclass
class Options:
    units: int = 64

def small():
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input([8]), dense(Options().units), dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model

def nothing():
    return 7

def unshaped():
    return keras.Sequential([keras.Input([None, 8]), keras.layers.LSTM(4)])

def unbuilt():
    return keras.Sequential([keras.layers.Dense(1)])

def without_weights():
    return keras.Sequential([keras.Input([8]), keras.layers.ReLU()])
"""


@pytest.mark.slow
def test_a_model_is_built_and_timed(tmp_path):
    (tmp_path / "train.py").write_text(MODEL)
    done = subprocess.run(
        [sys.executable, "-m", "tfdp.tools.cli", "plan", "--model", "train.py:small", "-n", "1,2"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
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
        ("unbuilt", "does not know its inputs' shapes"),
    ],
)
def test_a_model_that_cannot_be_planned_for_is_refused(tmp_path, capsys, name, says):
    (tmp_path / "train.py").write_text(MODEL)
    assert says in refused(capsys, "--model", f"{tmp_path}/train.py:{name}")


def test_the_activations_and_frozen_weights_of_a_model_are_counted_with_logs_too(tmp_path, capsys):
    """Batches of 32: 8 + 64 + 1 numbers of 4 bytes for each example."""
    (tmp_path / "train.py").write_text(MODEL)
    logs = write_run(tmp_path / "logs", parameters=641)
    said = planned(capsys, "--model", f"{tmp_path}/train.py:small", "--logs", str(logs), "-n", "4")
    assert re.search(r"activations 8.3[0-9]* kB at most", said), said


def test_the_logs_of_another_model_are_refused(tmp_path, capsys):
    (tmp_path / "train.py").write_text(MODEL)
    logs = write_run(tmp_path / "logs")
    said = refused(capsys, "--model", f"{tmp_path}/train.py:small", "--logs", str(logs))
    assert "trains 641 weights" in said and "one that trained 1,626,442" in said
