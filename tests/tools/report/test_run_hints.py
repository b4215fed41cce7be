"""What to try next: each rule speaks from its threshold on, and not below."""

import dataclasses
import json
import math
import pathlib
import re

import pytest
from tools.report.logs import start_line, step_line, write_rank, write_run

import tfdp
from tfdp import topology
from tfdp.base.log_lines import StartLine, StepLine
from tfdp.tools import cli
from tfdp.tools.prediction import (
    ClusterModel,
    Plan,
    Workload,
    candidates,
    described_links,
    even_tensors,
    predict,
    ranked,
)
from tfdp.tools.prediction.ranking import plans_in_words
from tfdp.tools.report import run_hints
from tfdp.tools.report.breakdown import RankSplit, Split
from tfdp.tools.report.late_ranks import Wait
from tfdp.tools.report.log_directory import read_run
from tfdp.tools.report.prediction_inputs import Recorded, recorded
from tfdp.tools.report.run_hints import findings
from tfdp.topology import Links


def a_start(**changed):
    return StartLine(
        **{"time": 0, "rank": 0, "world_size": 2, "host": "a", "replicas": 2} | changed
    )


def splits(part, *shares):
    return [
        RankSplit(rank, f"host-{rank}", Split({part: share, "compute": 1 - share}), 9)
        for rank, share in enumerate(shares)
    ]


def test_one_rank_that_waits_for_input_is_enough():
    found = run_hints.input_wait(splits("input", 0.01, 0.15, 0.02))
    assert found.advice and "Rank 1 on host-1 waits for input for 15%" in found.measured
    assert not run_hints.input_wait(splits("input", 0.01, 0.149)).advice
    assert run_hints.input_wait(splits("other", 0.5)) is None


def test_communication_is_judged_where_no_late_rank_is_waited_for():
    assert run_hints.communication(splits("communication", 0.4, 0.2), None).advice
    assert not run_hints.communication(splits("communication", 0.4, 0.19), None).advice
    assert run_hints.communication(splits("input", 0.4), None) is None


@pytest.mark.slow
def test_the_advice_on_communication_is_the_prediction_s(tmp_path):
    """Four ranks, 6.5 MB of gradients, 0.11 s computed and 0.4 s exposed: links of 20 MB/s."""
    run = read_run(write_run(tmp_path, communication=0.4, topology="Tree()"))
    found = recorded(run)
    said = list(plans_in_words(found.plan, found.work, found.cluster))
    [communication] = [one for one in findings(run) if one.name == "Communication"]
    assert said and list(communication.advice[: len(said)]) == said
    now = predict(found.plan, found.work, found.cluster)
    assert now.communication_seconds == pytest.approx(0.4, rel=0.15)
    rows = ranked(candidates(found.plan), found.work, found.cluster)
    best = next(row for row in rows if not row.plan.is_exact)
    assert best.step_seconds < 0.6 * now.step_seconds
    assert any(", ".join(best.plan.arguments()) in sentence for sentence in said)


def test_a_communication_that_is_hidden_tells_the_least_rate_and_no_costs(tmp_path):
    run = read_run(write_run(tmp_path, communication=0.0, topology="Tree()"))
    found = recorded(run)
    usual = described_links(1e10, 5e-5, 1e11, 5e-6)
    assert found.links_origin.startswith("the slowest that explain")
    assert found.cluster.links.operation_seconds == usual.operation_seconds
    assert found.cluster.links.core_seconds_per_byte == usual.core_seconds_per_byte
    assert found.cluster.links.bytes_per_second_between < 1e11


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "known"),
    [
        ("ring", "ring"),
        ("Native()", "native"),
        ("Torus(rows=2, columns=4)", topology.Torus(2, 4)),
        (
            "Hierarchical(inner=Direct(), outer=Tree())",
            topology.Hierarchical(topology.Direct(), topology.Tree()),
        ),
        ("Auto(rules=(Rule(up_to_bytes=None, topology=Tree()),))", "auto"),
    ],
)
def test_a_run_s_topology_keeps_its_arguments(tmp_path, told, known):
    assert recorded(read_run(write_run(tmp_path, topology=told))).plan.topology == known


@pytest.mark.parametrize("told", ["Mine()", "print(1)", "<Mine object>", "os.system('x')"])
def test_a_topology_of_one_s_own_is_not_planned_with(tmp_path, told):
    assert recorded(read_run(write_run(tmp_path, topology=told))) is None


def test_links_that_no_version_knows_are_not_taken(tmp_path):
    directory = write_run(tmp_path, communication=0.2)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["strategy"]["topology"] = {"name": "auto", "links": {"speed": 3}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    assert "explain" in recorded(read_run(directory)).links_origin


def test_overhead_proposes_more_steps_an_execution_than_there_are():
    found = run_hints.other(splits("other", 0.25, 0.3), a_start(steps_per_execution=4))
    assert any("steps_per_execution=40" in sentence for sentence in found.advice)
    assert not run_hints.other(splits("other", 0.1, 0.3), a_start()).advice


def test_a_straggler_s_longest_part_is_named():
    waits = (Wait(0, "a", 0.2, -0.2, 0, 9), Wait(1, "b", 0.0, 0.2, 9, 9, True))
    parts = [{"input": 0.1, "compute": 0.5}, {"input": 0.3, "compute": 0.55}]
    both = [RankSplit(rank, "ab"[rank], Split(own), 9) for rank, own in enumerate(parts)]
    found = run_hints.straggling(waits, both, step_seconds=1.0)
    punctual = tuple(dataclasses.replace(wait, straggles=False) for wait in waits)
    assert "Rank 1 on b comes last in 9 of 9 samples, 200 ms (20% of a step)" in found.measured
    assert (
        found.advice[0]
        == "Rank 1 waits for input 200 ms a step longer than the median of the others."
    )
    assert "how b reads" in found.advice[1]
    assert not run_hints.straggling(punctual, both, step_seconds=1.0).advice
    assert run_hints.straggling((), both, step_seconds=1.0) is None


def test_each_straggler_is_in_the_finding():
    waits = (Wait(0, "a", 0.2, 0.0, 1, 9), *(Wait(r, "b", 0, 0.2, 4, 9, True) for r in (1, 2)))
    measured = run_hints.straggling(waits, (), step_seconds=1.0).measured
    assert [f"Rank {r} on" in measured for r in range(3)] == [False, True, True]


def test_few_skipped_steps_are_normal():
    assert not run_hints.skipped_steps((4, 100)).advice
    assert run_hints.skipped_steps((5, 100)).advice
    assert run_hints.skipped_steps(None) is None


def test_examples_that_did_not_count_are_said_where_ranks_do_not_wait():
    steps = [StepLine(0, n, 0, 1, 8, 1.0, dropped_examples=n % 2) for n in (1, 2)]
    found = run_hints.dropped_examples(steps)
    assert found.measured.startswith("1 of 16 examples (6.2%) did not count") and not found.advice
    assert run_hints.dropped_examples([StepLine(0, 1, 0, 1, 8, 1.0)]) is None


def test_a_loss_that_is_not_finite_is_named_with_its_step():
    def step(number, **values):
        return StepLine(0, number, 0, 1, 8, 1.0, **values)

    fine = [step(1, loss=1.0), step(2, loss=2.0, gradient_norm=math.inf, skipped_steps=1)]
    assert not run_hints.not_finite(fine).advice
    found = run_hints.not_finite([*fine, step(3, loss=math.nan), step(4, gradient_norm=math.inf)])
    assert found.measured.startswith("From step 3 on, 2 of 3") and found.advice


def test_a_compression_error_that_grows_is_told_with_both_ends():
    def steps(*errors):
        return [StepLine(0, n, 0, 1, 8, 1.0, compression_error=e) for n, e in enumerate(errors, 1)]

    assert run_hints.compression_error(steps(1, 1, 2, 2, 2.1, 2.1)).advice
    assert not run_hints.compression_error(steps(1, 1, 9, 9, 2, 2)).advice
    assert run_hints.compression_error(steps(1, 1, 2, 9, 9)) is None
    # Of gradients that are not finite another rule tells.
    assert run_hints.compression_error(steps(math.nan, 1, 1, 2, 2, 9, math.inf, 9)).advice
    assert run_hints.compression_error(steps(*[math.nan] * 6)) is None
    assert run_hints.compression_error([StepLine(0, 1, 0, 1, 8, 1.0)] * 9) is None


@pytest.mark.parametrize(
    ("changed", "advised"),
    [
        ({}, set()),
        ({"input_wait": 0.06}, {"Input"}),
        ({"communication": 0.06}, {"Communication"}),
        ({"late_rank": 1, "late_seconds": 0.05}, {"Stragglers"}),
    ],
)
def test_a_run_gets_the_advice_for_what_is_wrong_with_it(tmp_path, changed, advised):
    run = read_run(write_run(tmp_path, ranks=2, **changed))
    found = {finding.name for finding in findings(run) if finding.advice}
    assert found - {"Stragglers"} == advised - {"Stragglers"}
    assert advised <= found


def test_a_run_that_measured_nothing_gets_no_advice(tmp_path):
    run = read_run(write_rank(tmp_path, [start_line(), step_line(1)]))
    assert findings(run) == ()


SLOW = Recorded(
    Workload(even_tensors(10**6), 0.1, 0.2),
    ClusterModel(4, 1, Links(1e-4, 1e9, 1e-3, 25e6)),
    Plan(),
)


def all_advice():
    waits = (Wait(0, "a", 0.2, -0.2, 0, 9), Wait(1, "b", 0.0, 0.2, 9, 9, True))
    found = [
        run_hints.input_wait(splits("input", 0.5)),
        run_hints.communication(splits("communication", 0.5), SLOW),
        run_hints.other(splits("other", 0.5), a_start()),
        run_hints.straggling(waits, splits("input", 0.1, 0.5), 1.0),
        run_hints.skipped_steps((5, 10)),
        run_hints.dropped_examples([StepLine(0, 1, 0, 1, 8, 1.0, dropped_examples=2)]),
        run_hints.not_finite([StepLine(0, 1, 0, 1, 8, 1.0, loss=math.nan)]),
    ]
    return [sentence for finding in found for sentence in finding.advice]


def test_every_command_and_name_of_tfdp_in_the_advice_exists():
    text = " ".join(all_advice())
    names = re.findall(r"tfdp\.((?:\w+\.)*\w+)", text)
    assert len(names) >= 5
    for name in names:
        value = tfdp
        for part in name.split("."):
            value = getattr(value, part)
    commands = re.findall(r"`tfdp ([a-z ]+)`", text)
    assert {"doctor", "run", "bench", "data index"} <= set(commands)
    for command in commands:
        with pytest.raises(SystemExit) as exit_:
            cli.main([*command.split(), "--help"])
        assert exit_.value.code == 0
    root = pathlib.Path(__file__).parents[3]
    for page in re.findall(r"docs/[\w/.]+\w", text):
        assert (root / page).is_file()
