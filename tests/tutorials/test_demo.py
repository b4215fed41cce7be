"""The demo: what it trains, from end to end in one process and in several, and its verdict."""

import os
import subprocess
import sys

import numpy as np
import pytest
from tutorials.notebooks import ROOT

from tutorials.datasets import ImageData
from tutorials.demo import RELATIVE_BOUND, draw, main, steps_per_epoch, train, verdict

pytestmark = pytest.mark.slow


def few_images(examples=20):
    generator = np.random.default_rng(0)
    images = generator.random((examples, 8, 8, 1), dtype=np.float32)
    labels = np.arange(examples, dtype=np.int32) % 10
    return ImageData(images, labels, images[:6], labels[:6])


def test_one_seed_gives_one_result_every_step_is_timed_and_the_curves_are_drawn(tmp_path):
    data = few_images()
    first, second = (train(data, strategy=None, epochs=2, batch_size=8, seed=1) for _ in range(2))
    for a, b in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.history == second.history
    assert len(first.history["val_accuracy"]) == 2
    assert first.test_accuracy == first.history["val_accuracy"][-1]
    assert len(first.step_seconds) == 2 * steps_per_epoch(data, 8) - 1 == 5
    draw({"a": first, "b": second}, "twice the same", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(("apart", "code"), [(1e-7, 0), (1e-2, 1), (np.inf, 1), (np.nan, 1)])
def test_the_exit_code_says_whether_the_weights_agree(apart, code, capsys):
    expected = [np.array([8.0, 1.0]), np.array([2.0])]
    assert verdict(expected, [expected[0], expected[1] + 8 * apart]) == code
    said = capsys.readouterr()
    assert f"{apart:.2e} of the largest weight (bound {RELATIVE_BOUND:.0e})" in said.out
    assert ("This is a bug in tfdp" in said.err) == (code == 1)


def test_weights_that_diverged_alike_prove_nothing():
    assert verdict([np.array([np.nan])], [np.array([np.nan])]) == 1


def test_one_replica_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--replicas", "1"])
    assert "received 1; do `--replicas 2`" in capsys.readouterr().err


def demo(*launcher, options):
    return subprocess.run(
        [sys.executable, *launcher, "-m", "tutorials.demo", "--epochs", "1", *options],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=300,
        check=False,
    )


@pytest.mark.multiprocess
def test_processes_train_like_one_device(tmp_path):
    curves = tmp_path / "curves.png"
    launcher = ["-m", "tfdp", "run", "-n", "2", "--", sys.executable]
    done = demo(*launcher, options=["--output", str(curves)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] 2 replicas in 2 processes: 23 steps of 64 examples" in done.stdout
    assert done.stdout.count("Largest weight difference") == 1
    assert curves.stat().st_size > 10_000


@pytest.mark.exhaustive("test_processes_train_like_one_device")
def test_replicas_of_one_process_train_like_one_device(tmp_path):
    curves = tmp_path / "curves.png"
    done = demo(options=["--replicas", "3", "--output", str(curves)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 replicas: 23 steps of 64 examples" in done.stdout
    assert f"Curves: {curves}" in done.stdout
    assert curves.stat().st_size > 10_000
