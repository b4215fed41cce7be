"""Checkpoint and signals: all ranks stop after the same step, and a restart goes on from there."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import resumed_training
import tiers
from resumed_training import EPOCHS, STEPS, Stop, assert_same, train

from tfdp.callbacks.checkpoint import folder
from tfdp.callbacks.checkpoint.agreed_points import SIGNALS


@pytest.fixture
def undisturbed():
    return resumed_training.undisturbed()


@pytest.fixture
def handlers():
    """Gives the signals the handlers that they have in a fresh process."""

    def reset():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    reset()
    yield reset
    for number, handler in before.items():
        signal.signal(number, handler)


def raise_signal(number=signal.SIGTERM):
    signal.raise_signal(number)
    resumed_training.until_asked()


STOPS = {
    "within an epoch": STEPS + 2,
    "at an epoch's last step": STEPS,
    "at the training's last step": EPOCHS * STEPS,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", tiers.cases(STOPS, ["within an epoch"]))
@pytest.mark.parametrize("number", tiers.first_of(signal.SIGTERM, signal.SIGUSR1))
def test_a_signal_keeps_the_training_and_ends_it(
    case, number, tmp_path, undisturbed, caplog, handlers
):
    with pytest.raises(SystemExit) as end:
        train(tmp_path, stop_at=STOPS[case], how=lambda: raise_signal(number), every_steps=100)
    assert end.value.code == os.EX_TEMPFAIL == 75
    assert f"since {number.name} to rank 0 came" in caplog.text
    assert signal.getsignal(number) == signal.SIG_IGN  # while the process ends
    assert [path.name for path in folder.newest_first(tmp_path)] == [
        f"step-{STOPS[case]:08}.checkpoint"
    ]
    assert_same(train(tmp_path, every_steps=100), undisturbed)
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.slow
def test_a_handler_of_the_program_s_own_stays(tmp_path, caplog, handlers):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        train(
            tmp_path,
            stop_at=2,
            how=lambda: signal.raise_signal(signal.SIGUSR1),
            epochs=1,
            every_steps=9,
        )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [1]
    assert "SIGUSR1 has a handler of the program's own" in caplog.text


@pytest.mark.slow
def test_a_training_that_fails_leaves_handlers_as_they_were(tmp_path, handlers):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stop):
        train(tmp_path, stop_at=3, every_steps=1)
    assert signal.getsignal(signal.SIGTERM) == before


SIGNALLED = """
import hashlib, json, os, pathlib, signal, sys, threading, time
sys.path[:0] = {paths!r}
import lean
lean.import_keras()
import keras
import resumed_training

rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


pathlib.Path("{folder}", f"pid-{{rank}}").write_text(str(os.getpid()))
steps = pathlib.Path("{folder}", f"steps-{{rank}}")
goes_on = steps.exists()


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with steps.open("a") as file:
            file.write("x")
        time.sleep(0.05 * rank)  # ranks come to the end of a step at different times
        if not goes_on and steps.stat().st_size == {last}:
            resumed_training.until_asked()


values, history, epochs, _ = resumed_training.train(
    "{folder}/kept", devices=None, others=[Slow()], every_steps=1000
)
digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
print("digest", digest, len(epochs), flush=True)
"""


def steps_of(directory, rank):
    path = directory / f"steps-{rank}"
    return path.stat().st_size if path.exists() else 0


def signalled_run(directory, *options):
    script = directory / "train.py"
    here = pathlib.Path(__file__).parent
    script.write_text(
        SIGNALLED.format(
            paths=[str(here), str(here.parent)], folder=directory, last=(EPOCHS - 1) * STEPS
        )
    )
    return subprocess.Popen(
        [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "2", *options, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


TO = {"the launcher": signal.SIGTERM, "rank 1": signal.SIGUSR1, "rank 0": signal.SIGTERM}


@pytest.mark.multiprocess
@pytest.mark.parametrize("to", tiers.cases(TO, ["rank 1"]))
def test_a_signal_to_one_stops_all_ranks_after_the_same_step(to, tmp_path, undisturbed):
    run = signalled_run(tmp_path, "--max-restarts", "1")
    try:
        deadline = time.monotonic() + 200
        while steps_of(tmp_path, 1) < STEPS + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        pid = run.pid if to == "the launcher" else int((tmp_path / f"pid-{to[-1]}").read_text())
        os.kill(pid, TO[to])
        _, errors = run.communicate(timeout=200)
    finally:
        run.kill()
    assert run.returncode == os.EX_TEMPFAIL, errors  # no restart: somebody wanted the end
    assert "ranks 0, 1 of 2 stopped with exit code 75" in errors
    [path] = folder.newest_first(tmp_path / "kept")
    steps = int(path.stem.removeprefix("step-"))
    assert steps_of(tmp_path, 0) == steps_of(tmp_path, 1) == steps
    assert STEPS < steps < EPOCHS * STEPS

    output, errors = signalled_run(tmp_path).communicate(timeout=200)
    assert steps_of(tmp_path, 0) == EPOCHS * STEPS, errors  # no step twice, none left out
    digests = re.findall(r"digest (\w+) (\d+)", output)
    assert digests == [digests[0]] * 2
    assert digests[0][1] == str(EPOCHS)
