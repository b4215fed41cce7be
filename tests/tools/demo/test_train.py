"""The demo's training on one device."""

import numpy as np
import pytest

from tfdp.tools.demo.image_sets import ImageData
from tfdp.tools.demo.plot import plot_curves
from tfdp.tools.demo.train import steps_per_epoch, train

pytestmark = pytest.mark.slow

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def few_images(examples=20):
    generator = np.random.default_rng(0)
    images = generator.random((examples, 8, 8, 1), dtype=np.float32)
    labels = np.arange(examples, dtype=np.int32) % 10
    return ImageData(images, labels, images[:6], labels[:6])


def train_twice():
    return [
        train(few_images(), strategy=None, epochs=2, batch_size=8, seed=seed) for seed in (1, 1)
    ]


def test_one_seed_gives_one_result_and_the_curves_are_drawn(tmp_path):
    first, second = train_twice()
    for a, b in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.history == second.history
    plot_curves({"a": first, "b": second}, "twice the same", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG_SIGNATURE)


def test_every_step_is_counted_and_all_but_the_first_are_timed():
    data, seen = few_images(), []
    run = train(data, strategy=None, epochs=2, batch_size=8, seed=1, on_step=lambda: seen.append(1))
    assert len(seen) == 2 * steps_per_epoch(data, 8) == 6
    assert len(run.step_seconds) == 5
    assert len(run.history["val_accuracy"]) == 2
    assert run.test_accuracy == run.history["val_accuracy"][-1]
