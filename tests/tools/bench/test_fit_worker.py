"""One measurement of `fit`, in a process of its own."""

import pytest

from tfdp.tools.bench.child_process import ChildFailure, run_for_json


@pytest.mark.slow
@pytest.mark.parametrize(
    "side",
    ["tfdp", *(pytest.param(s, marks=pytest.mark.exhaustive) for s in ("stock", "one_device"))],
)
def test_a_worker_reports_what_it_timed(side):
    words = f"--side {side} --model small --replicas 2 --batch 2 --steps 3".split()
    measured = run_for_json("tfdp.tools.bench.fit_worker", words, timeout_seconds=300)
    assert not isinstance(measured, ChildFailure), measured
    assert measured["parameters"] == 42_634
    assert measured["threads"] >= 1 and measured["collectives"] is None
    assert len(measured["step_seconds"]) == 3
    assert measured["first_step_seconds"] > 0
    assert measured["final_loss"] == pytest.approx(measured["final_loss"])
    assert measured["versions"].keys() == {"tfdp", "tensorflow", "keras", "numpy"}
