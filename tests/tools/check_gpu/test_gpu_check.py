"""`tfdp check-gpu` goes on whatever becomes of a stage; on CPUs all of it runs."""

import dataclasses
import importlib.util
import json

import pytest

from tfdp.base import gpus, machine
from tfdp.tools.bench.child_process import ChildFailure
from tfdp.tools.check_gpu import gpu_check
from tfdp.tools.check_gpu.stages import NAMES, STAGES, CheckGpuOptions
from tfdp.tools.cli import main

FINE = {"state": "works", "said": "it is so", "details": {"number": 1}}
KILLED = ChildFailure("python -m x", "was killed after 60 s", "nccl: sum of int32")
BROKEN = ChildFailure("python -m x", "exited with status -6", "")


@pytest.fixture
def answers(monkeypatch):
    """What each stage's processes answer, and how much of the file was there when each began."""
    found = {"known": {}, "begun": {}, "path": None}

    def worker(module, words, limit_seconds, **place):
        found["begun"][words[0]] = results(found["path"]) if found["path"].exists() else []
        return found["known"].get(words[0], FINE)

    monkeypatch.setattr(gpu_check, "run_for_json", worker)
    monkeypatch.setattr(
        gpu_check, "_between_processes", lambda *_: gpu_check.StageFinding("works", "")
    )
    for several in (gpu_check.speed, gpu_check.xla_check):
        monkeypatch.setattr(several, "compared", lambda *_: gpu_check.StageFinding("works", ""))
    monkeypatch.setattr(machine, "tensorflow_is_for_cpus", lambda: False)
    return found


def results(path):
    return json.loads(path.read_text())["results"]


def run(answers, path, **options):
    answers["path"] = path
    return gpu_check.run(CheckGpuOptions(json=path, **options))


@pytest.mark.parametrize(
    ("answer", "state", "said"),
    [
        (KILLED, "hangs", "was killed after 60 s; nccl: sum of int32"),
        (BROKEN, "failed", "exited with status -6; it said nothing"),
        ({**FINE, "state": "differs"}, "differs", "it is so"),
    ],
)
def test_a_stage_that_does_not_go_well_stops_no_other(
    answer, state, said, answers, tmp_path, capsys
):
    answers["known"]["nccl"] = answer
    assert run(answers, tmp_path / "found.json", device="CPU") == 1
    found = results(tmp_path / "found.json")
    assert [each["stage"] for each in found] == list(NAMES)
    assert [each["state"] for each in found if each["stage"] != "nccl"] == ["works"] * (
        len(NAMES) - 1
    )
    assert (found[1]["state"], found[1]["said"]) == (state, said)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(NAMES) + 1
    assert printed[1].split()[:2] == ["nccl", state] and printed[1].endswith(said)


def test_the_file_holds_what_was_found_before_a_stage_begins(answers, tmp_path):
    assert run(answers, tmp_path / "found.json", device="CPU", stages=NAMES[:4]) == 0
    stages = {stage: [e["stage"] for e in then] for stage, then in answers["begun"].items()}
    assert stages == {name: list(NAMES[:number]) for number, name in enumerate(NAMES[:4])}


@pytest.mark.parametrize(
    ("present", "skipped", "code"),
    [
        ([], set(NAMES) - {"devices", "xla"}, 1),
        (["0"], {"gpus", "processes"}, 0),
        (["0", "1"], set(), 0),
    ],
)
def test_what_the_machine_has_too_few_gpus_for_is_skipped(
    present, skipped, code, answers, tmp_path, monkeypatch
):
    monkeypatch.setattr(gpus, "visible", lambda: present)
    if not present:
        answers["known"]["devices"] = {**FINE, "state": "failed"}
    assert run(answers, tmp_path / "found.json") == code
    found = {each["stage"]: each for each in results(tmp_path / "found.json")}
    assert {name for name, each in found.items() if each["state"] == "skipped"} == skipped
    for name in skipped:
        assert "GPU" in found[name]["said"]


def test_where_tensorflow_is_for_cpus_the_gpus_are_asked_by_jax_alone(
    answers, tmp_path, monkeypatch
):
    monkeypatch.setattr(gpus, "visible", lambda: ["0", "1"])
    monkeypatch.setattr(machine, "tensorflow_is_for_cpus", lambda: True)
    assert run(answers, tmp_path / "found.json") == 0
    found = {each["stage"]: each for each in results(tmp_path / "found.json")}
    assert [name for name, each in found.items() if each["state"] == "works"] == ["xla"]
    assert "tfdp[gpu]" in found["nccl"]["said"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run(answers, tmp_path / "found.json")
    assert results(tmp_path / "found.json")[0]["state"] == "works"


def test_a_check_that_has_asked_nothing_is_not_well(answers, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "visible", lambda: ["0"])
    assert run(answers, tmp_path / "found.json", stages=("gpus",)) == 1


def test_all_stages_take_as_long_as_the_help_says():
    assert sum(stage.limit_seconds for stage in STAGES) == 24 * 60


def test_the_stages_run_in_their_own_order_and_another_name_is_refused(capsys):
    assert CheckGpuOptions(stages=("speed", "nccl")).chosen == (STAGES[1], STAGES[6])
    with pytest.raises(SystemExit):
        main(["check-gpu", "--stages", "nccl,rccl"])
    assert "received 'nccl,rccl'" in capsys.readouterr().err


def unhurried(*stages):
    """Stages whose limits do not end them where the machine does much else."""
    return [dataclasses.replace(each, limit_seconds=600.0) for each in stages]


@pytest.mark.multiprocess
def test_a_process_that_hangs_is_killed_and_the_next_stage_runs(tmp_path, monkeypatch, capsys):
    """Half a second is not enough to import TensorFlow."""
    devices, draws = (each for each in STAGES if each.name in ("devices", "draws"))
    limited = [dataclasses.replace(devices, limit_seconds=0.5), *unhurried(draws)]
    monkeypatch.setattr(CheckGpuOptions, "chosen", limited)
    path = tmp_path / "found.json"
    assert gpu_check.run(CheckGpuOptions(device="CPU", json=path)) == 1
    devices, draws = results(path)
    assert devices["state"] == "hangs" and "was killed after 0.5 s" in devices["said"]
    assert draws["state"] == "works", draws
    assert set(draws["details"].values()) == {"the same"}


@pytest.mark.multiprocess
@pytest.mark.exhaustive("test_a_process_that_hangs_is_killed_and_the_next_stage_runs")
def test_every_stage_works_on_logical_cpus(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(CheckGpuOptions, "chosen", unhurried(*STAGES))
    path = tmp_path / "found.json"
    assert main(["check-gpu", "--device", "CPU", "--json", str(path)]) == 0, path.read_text()
    found = {each["stage"]: each for each in results(path)}
    assert [each["state"] for each in found.values()] == ["works"] * len(NAMES)
    programs = {"mlp", "cnn", "embedding", "transformer", "lstm"}
    for stage in ("parts", "gpus"):
        assert found[stage]["details"]["programs"].keys() == programs
    assert found["processes"]["details"]["doctor"][-1] == "All checks passed."
    (case,) = found["speed"]["details"]["cases"]
    assert case["replicas"] == 2 and case["ratios"]["stock"] > 0
    assert found["xla"]["details"]["programs"].keys() == programs
    assert all(map(all, found["xla"]["details"]["step_seconds"].values()))
    assert len(capsys.readouterr().out.splitlines()) == len(NAMES) + 1
