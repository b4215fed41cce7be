"""The stages of one process notice what is wrong, and go on to what comes next."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tools.check_gpu import small_programs

from tfdp.tools.check_gpu import nccl, replica_checks, worker
from tfdp.tools.doctor.cluster_hints import Hint

CPUS = ["CPU:0", "CPU:1", "CPU:2"]


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch):
    """The logical devices of the tests, which are split once."""
    for module in (replica_checks, nccl):
        monkeypatch.setattr(module, "of_replicas", lambda replicas, kind: CPUS[:replicas])


def test_a_device_whose_product_is_wrong_is_named(monkeypatch):
    assert worker.answer("devices", "CPU", 2, 3).state == "works"
    right = tf.matmul

    def matmul(a, b):
        return right(a, b) * (1.001 if "CPU:1" in a.device else 1.0)

    monkeypatch.setattr(replica_checks.tf, "matmul", matmul)
    found = worker.answer("devices", "CPU", 2, 3)
    assert found.state == "differs" and "wrong on CPU:1" in found.said


def test_without_a_gpu_the_devices_fail_with_what_the_doctor_says(monkeypatch):
    monkeypatch.setattr(replica_checks, "hints", lambda ranks: [Hint("Do!", (0,))])
    found = worker.answer("devices", "GPU", 0, 3)
    assert (found.state, found.said) == ("failed", "Do!")


@pytest.mark.parametrize(
    ("refused", "state", "said"),
    [
        (None, "works", "bfloat16: right"),
        (tf.bfloat16, "works", "bfloat16: InternalError: refused"),
        (tf.int64, "failed", "sum of int64: InternalError: refused"),
    ],
)
def test_a_type_that_nccl_must_take_and_does_not_is_named(refused, state, said, monkeypatch):
    sum_ = nccl._sum

    def _sum(own):
        if own.dtype == refused:
            raise tf.errors.InternalError(None, None, "Graph execution error:\n\nrefused")
        return sum_(own)

    monkeypatch.setattr(nccl, "_sum", _sum)
    found = worker.answer("nccl", "CPU", 1, 3)
    assert found.state == state and said in found.said
    asked = {said for said in found.details.values() if "not asked" not in said}
    assert len(found.details) == 8 + (refused != tf.int64)
    assert (len(asked) == 2) == (refused is not None)


def test_a_wrong_number_from_nccl_is_named(monkeypatch):
    monkeypatch.setattr(nccl, "_gather", lambda own: own + 1)
    found = worker.answer("nccl", "CPU", 1, 3)
    assert (found.state, found.said) == ("failed", "gather of float32: WRONG")


@pytest.mark.slow
def test_draws_that_are_not_those_of_one_device_are_named(monkeypatch):
    numbers = iter(range(100))
    by_trace = {"by Python": lambda: lambda x: x + float(next(numbers))}
    drawing = {**by_trace, "Dropout": replica_checks._DRAWS["Dropout"]}
    monkeypatch.setattr(replica_checks, "_DRAWS", drawing)
    found = worker.answer("draws", "CPU", 3, 3)
    assert found.state == "differs"
    assert "other numbers: by Python (by Python: 100.0% differ, by up to 1" in found.said
    assert found.details["Dropout"] == "the same"


@pytest.mark.slow
def test_a_program_that_parts_or_fails_is_named_and_the_next_is_verified(monkeypatch):
    monkeypatch.setattr(replica_checks, "PROGRAMS", small_programs.PROGRAMS)
    batch = (np.ones([5, 12], "float32"), np.ones([5, 2], "float32"))
    monkeypatch.setattr(replica_checks, "batches", lambda name: [batch])
    found = worker.answer("gpus", "CPU", 2, 2)
    assert found.state == "differs"
    assert "16 MB summed right by TensorFlow's rings" in found.said
    assert "not like one device: scaled, fails (scaled: parts by" in found.said
    programs = found.details["programs"]
    assert programs["fails"]["error"] == "ValueError: no model"
    assert "does not train as on one device" in programs["scaled"]["report"]
    assert programs["mlp"]["equal"]


@pytest.mark.parametrize(("equal", "state"), [(True, "works"), (False, "differs")])
def test_parts_of_one_device_are_replicas(equal, state, monkeypatch):
    monkeypatch.setattr(replica_checks, "split", lambda replicas, kind: CPUS[:replicas])
    monkeypatch.setattr(
        replica_checks, "_verified", lambda s: (equal, str(s.num_replicas_in_sync), {})
    )
    found = worker.answer("parts", "CPU", 1, 3)
    assert (found.state, found.said) == (state, "3 parts: 3")


def test_a_sum_that_is_wrong_is_said(monkeypatch):
    monkeypatch.setattr(replica_checks, "_verified", lambda strategy: (True, "fine", {}))
    wrong = replica_checks.measure
    monkeypatch.setattr(
        replica_checks,
        "measure",
        lambda *words: dataclasses.replace(wrong(*words), right=False),
    )
    found = worker.answer("gpus", "CPU", 2, 2)
    assert found.state == "differs" and "summed WRONG" in found.said


def test_a_stage_of_several_processes_is_refused():
    with pytest.raises(ValueError, match="received 'speed'"):
        worker.answer("speed", "CPU", 2, 2)
