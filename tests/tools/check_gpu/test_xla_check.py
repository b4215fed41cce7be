"""The stage of `tfdp check-gpu` for XLAStrategy: what it says of its processes' answers."""

import importlib.util

import pytest
import tensorflow as tf
from tools.check_gpu import small_programs

from tfdp.tools.bench.child_process import ChildFailure
from tfdp.tools.check_gpu import check_programs, xla_check, xla_worker

FINE = {"mlp": {"equal": True, "difference": 2e-7}, "cnn": {"equal": True, "difference": 3e-7}}
ANSWER = {"jax": "0.11.2", "platform": "gpu", "devices": "1 x NVIDIA H100", "programs": FINE}
STEP = {"tfdp": 0.008, "keras_on_jax": 0.010}


@pytest.fixture
def runs(monkeypatch):
    """Replaces the processes, of ten seconds each; returns what they answer and their words."""
    found = {"right": ANSWER, "begun": []}
    clock = [0.0]

    def process(module, words, limit_seconds, environment=None, on_gpus=False):
        found["begun"].append((words, environment, on_gpus))
        clock[0] += 10.0
        if words[0] == "right":
            return found["right"]
        side = words[words.index("--side") + 1]
        return found.get(side, {"median_step_seconds": STEP[side]})

    monkeypatch.setattr(xla_check, "run_for_json", process)
    monkeypatch.setattr(xla_check.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return found


def test_programs_that_train_like_the_cpu_and_a_step_beside_keras_on_jax(runs):
    found = xla_check.compared("GPU", 1, 1e6)
    assert found.state == "works"
    assert found.said == (
        "1 x NVIDIA H100, jax 0.11.2: mlp, cnn train like the CPU, within 3.0e-07; "
        "a step 8.00 ms (0.80 x Keras on JAX's)"
    )
    assert found.details["step_seconds"] == {"tfdp": [0.008] * 2, "keras_on_jax": [0.010] * 2}
    assert all(on_gpus for _, _, on_gpus in runs["begun"])
    assert {"large"} == {words[-1] for words, _, _ in runs["begun"][1:]}


def test_a_tpu_is_asked_where_there_is_no_gpu(runs):
    runs["right"] = {**ANSWER, "platform": "tpu", "devices": "4 x TPU v5 lite"}
    assert xla_check.compared("GPU", 0, 1e6).said.startswith(
        "4 x TPU v5 lite, jax 0.11.2: mlp, cnn"
    )


def test_a_program_that_parts_or_fails_is_named(runs):
    runs["right"] = {**ANSWER, "programs": {**FINE, "cnn": {"equal": False, "difference": 5e-4}}}
    found = xla_check.compared("GPU", 1, 1e6)
    assert (
        found.state == "differs" and "not like the CPU: cnn (cnn: parts by 5.0e-04)" in found.said
    )
    runs["right"]["programs"]["mlp"] = {"equal": False, "error": "ValueError: no model"}
    assert "mlp, cnn (mlp: ValueError: no model)" in xla_check.compared("GPU", 1, 1e6).said


@pytest.mark.parametrize(
    ("present", "state", "said"), [(2, "failed", r"tfdp\[xla-cuda13\]"), (0, "skipped", "no GPU")]
)
def test_a_jax_without_a_plugin_is_told_what_to_install(present, state, said, runs):
    runs["right"] = {**ANSWER, "platform": "cpu"}
    found = xla_check.compared("GPU", present, 1e6)
    assert found.state == state
    assert said.replace("\\", "") in found.said
    assert len(runs["begun"]) == 1  # no step is timed


def test_without_jax_it_is_skipped(runs, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = xla_check.compared("GPU", 1, 1e6)
    assert (found.state, runs["begun"]) == ("skipped", [])


def test_cpu_devices_stand_for_others_where_they_are_asked_for(runs):
    runs["right"] = {**ANSWER, "platform": "cpu", "devices": "2 x cpu"}
    assert xla_check.compared("CPU", 2, 1e6).state == "works"
    for _, environment, on_gpus in runs["begun"]:
        assert environment["JAX_PLATFORMS"] == "cpu" and not on_gpus
    assert {"small"} == {words[-1] for words, _, _ in runs["begun"][1:]}


@pytest.mark.parametrize(
    ("reason", "state"), [("was killed after 240 s", "hangs"), ("exited with status 1", "failed")]
)
def test_a_process_that_gives_no_answer_has_its_last_words_said(reason, state, runs):
    runs["right"] = ChildFailure("python -m x", reason, "xla: lstm")
    found = xla_check.compared("GPU", 1, 1e6)
    assert found.state == state and reason in found.said and "xla: lstm" in found.said


def test_a_side_that_fails_is_kept_and_what_fits_into_the_time_is_compared(runs):
    runs["keras_on_jax"] = ChildFailure("python -m x", "exited with status 1", "why")
    found = xla_check.compared("GPU", 1, 1e6)
    assert found.state == "failed" and "no step of both sides: a side has failed" in found.said
    assert "why" in found.details["failures"][0]
    del runs["keras_on_jax"]
    found = xla_check.compared("GPU", 1, 50.0)
    assert found.details["step_seconds"] == {"tfdp": [0.008] * 2, "keras_on_jax": [0.010]}
    assert found.state == "works"
    runs["keras_on_jax"] = ChildFailure("python -m x", "was killed after 10 s", "")
    found = xla_check.compared("GPU", 1, 30.0)
    assert "no step of both sides: the time was over" in found.said
    assert not found.details["failures"]


@pytest.mark.slow
def test_a_program_is_held_against_the_compiled_cpu_in_float32(monkeypatch):
    pytest.importorskip("jax")

    levels = []
    monkeypatch.setattr(tf.config.experimental, "enable_tensor_float_32_execution", levels.append)
    monkeypatch.setattr(check_programs, "PROGRAMS", small_programs.PROGRAMS)
    found = xla_worker.right()
    assert levels == [False]
    assert found["devices"] == "8 x cpu"
    assert found["programs"]["fails"] == {"equal": False, "error": "ValueError: no model"}
    assert not found["programs"]["scaled"]["equal"]
    assert found["programs"]["mlp"]["equal"]
