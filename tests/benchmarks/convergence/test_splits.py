"""What a run is trained on, chosen by and tested on."""

import numpy as np
import pytest

from benchmarks.convergence import splits
from benchmarks.convergence.splits import CONTEXT
from tutorials.datasets import DataUnavailableError, ImageData


def images(count=100):
    generator = np.random.default_rng(0)
    return ImageData(
        generator.random((count, 28, 28, 1), np.float32),
        np.arange(count, dtype=np.int32) % 10,
        generator.random((20, 28, 28, 1), np.float32),
        np.arange(20, dtype=np.int32) % 10,
    )


def test_the_last_images_choose_the_learning_rate():
    found = splits.of_images(images(), flat=False)
    assert [len(part[0]) for part in (found.training, found.validation, found.test)] == [80, 20, 20]
    np.testing.assert_array_equal(found.validation[1], images().train_labels[80:])


def test_images_are_standardized_by_the_training_split():
    found = splits.of_images(images(), flat=True)
    assert found.training[0].shape == (80, 784)
    assert found.training[0].dtype == np.float32
    assert found.training[0].mean() == pytest.approx(0, abs=1e-5)
    assert found.training[0].std() == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def text():
    """60,000 characters, in which no place looks like another."""
    return "".join(chr(65 + n) for n in np.random.default_rng(0).integers(26, size=60_000))


def decoded(windows):
    return {"".join(chr(65 + code) for code in window) for window in windows}


def test_the_label_of_a_character_is_the_next(text):
    inputs, labels = splits.of_text(text).training
    assert inputs.shape == labels.shape == (54_000 // CONTEXT, CONTEXT)
    assert inputs.dtype == np.int32
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])


def test_the_end_of_the_text_is_the_test_split_and_no_window_is_in_two(text):
    found = splits.of_text(text)
    assert found.classes == 26
    assert all(window in text[57_000:] for window in decoded(found.test[0]))
    assert all(window in text[54_000:57_000] for window in decoded(found.validation[0]))
    assert all(window in text[:54_000] for window in decoded(found.training[0]))


def test_a_long_text_is_cut_to_so_many_windows(text, monkeypatch):
    monkeypatch.setattr(splits, "TRAINING_WINDOWS", 500)
    training = splits.of_text(text).training[0]
    assert len(training) == 500
    assert any(window in text[50_000:] for window in decoded(training))


def test_a_trial_takes_the_first_examples_and_no_more_than_there_are(monkeypatch):
    monkeypatch.setattr(splits.datasets, "load", lambda name: images())
    cut, whole = splits.load("mlp", 10), splits.load("mlp")
    np.testing.assert_array_equal(cut.training[0], whole.training[0][:10])
    assert len(cut.test[0]) == len(whole.test[0])
    with pytest.raises(DataUnavailableError, match=r"at most the 80.*received 81"):
        splits.load("mlp", 81)
