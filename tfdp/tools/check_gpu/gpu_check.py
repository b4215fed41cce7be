"""`tfdp check-gpu`: its stages one after the other, whatever becomes of each."""

import dataclasses
import importlib.util
import sys
import time
from typing import Any

from tfdp.base import gpus, machine
from tfdp.tools.bench.bench_tables import write_results
from tfdp.tools.bench.child_process import ChildFailure, run_for_json, run_module
from tfdp.tools.check_gpu import speed, xla_check
from tfdp.tools.check_gpu.stages import CheckGpuOptions, Stage, StageFinding, line

# Stands for several GPUs where logical CPU devices do.
_CPUS = 2
_TO_END_SECONDS = 15.0


def run(options: CheckGpuOptions) -> int:
    """Runs the chosen stages, prints a line for each, and writes all findings after each.

    Each stage has processes of its own, which are killed at its limit with all that they started:
    a stage that hangs, or takes its process with it, stops no other.

    Cost: up to 24 minutes for all stages.

    Returns:
      The exit code: 0, also where stages are skipped; 1 where one is not well, or all are skipped.
    """
    present = len(gpus.visible()) if options.device == "GPU" else _CPUS
    findings: list[tuple[str, StageFinding, float]] = []
    for stage in options.chosen:
        began = time.monotonic()
        finding = _found(stage, present, options)
        findings.append((stage.name, finding, time.monotonic() - began))
        print(line(*findings[-1]), flush=True)
        _write(options, present, findings)
    print(f"All findings: {options.json}", flush=True)
    well = all(finding.is_well for _, finding, _ in findings)
    return 0 if well and any(finding.state == "works" for _, finding, _ in findings) else 1


def _found(stage: Stage, present: int, options: CheckGpuOptions) -> StageFinding:
    """Returns the answer of a stage, whatever it does."""
    if options.device == "GPU" and stage.name != "xla" and _leaves_gpus_to_jax():
        said = "TensorFlow is its build for CPUs; `pip install 'tfdp[gpu]'` has one for GPUs"
        return StageFinding("skipped", said)
    if present == 0 < stage.gpus:
        return StageFinding(
            "skipped", "`nvidia-smi -L` shows no GPU; `tfdp doctor` says what to do"
        )
    if present < stage.gpus:
        return StageFinding("skipped", f"there must be {stage.gpus} GPUs, but there is {present}")
    if stage.name == "speed":
        return speed.compared(options.device, present, stage.limit_seconds)
    if stage.name == "xla":
        return xla_check.compared(options.device, present, stage.limit_seconds)
    if stage.name == "processes":
        return _between_processes(present, stage.limit_seconds, options.device)
    words = [stage.name, "--device", options.device, "--gpus", str(present)]
    words += ["--parts", str(options.parts)]
    answer = run_for_json(
        "tfdp.tools.check_gpu.worker", words, stage.limit_seconds, **_place(options)
    )
    return _without_answer(answer) if isinstance(answer, ChildFailure) else StageFinding(**answer)


def _leaves_gpus_to_jax() -> bool:
    """Returns whether GPUs are for `XLAStrategy` alone here."""
    return machine.tensorflow_is_for_cpus() and importlib.util.find_spec("jax") is not None


def _between_processes(present: int, limit_seconds: float, device: str) -> StageFinding:
    """Has `tfdp doctor` sum between as many processes as there are GPUs."""
    limit = f"{limit_seconds - _TO_END_SECONDS:g}"
    words = ["run", "-n", str(present), "--timeout", limit, "--"]
    words += [sys.executable, "-m", "tfdp", "doctor", "--timeout", limit]
    done = run_module("tfdp", words, limit_seconds, on_gpus=device == "GPU")
    if isinstance(done, ChildFailure):
        return _without_answer(done)
    lines = [said.removeprefix("[0] ") for said in done.stdout.splitlines()]
    return StageFinding("works", f"{present} processes: {lines[-1]}", {"doctor": lines})


def _place(options: CheckGpuOptions) -> dict[str, Any]:
    """Returns what a worker's process needs to be where it is asked to."""
    return {"environment": machine.gpu_settings(), "on_gpus": options.device == "GPU"}


def _without_answer(failure: ChildFailure) -> StageFinding:
    """Returns what is known of a stage that gave no answer: its last words."""
    state = "hangs" if failure.reason.startswith("was killed after") else "failed"
    words = failure.stderr_tail.strip().splitlines()
    last = words[-1] if words else "it said nothing"
    return StageFinding(state, f"{failure.reason}; {last}", {"standard_error": words})


def _write(
    options: CheckGpuOptions, present: int, findings: list[tuple[str, StageFinding, float]]
) -> None:
    results = [
        {"stage": name, **dataclasses.asdict(finding), "seconds": round(seconds, 1)}
        for name, finding, seconds in findings
    ]
    asked = {**dataclasses.asdict(options), "gpus": present, "versions": machine.versions()}
    write_results(options.json, asked, results, [])
