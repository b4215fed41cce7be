"""`benchmarks data`: both sides read the same examples, and the tables say what was measured."""

import importlib.util
import io
import json
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.data import cases, files, measure, rates
from benchmarks.data.data_options import DataOptions
from tutorials.datasets import ImageData

pytestmark = pytest.mark.slow

EXAMPLES = 24


@pytest.fixture
def data(monkeypatch):
    """Instead of Fashion-MNIST: every image and label is another one, but there are 2 classes."""
    images = np.random.default_rng(0).random([EXAMPLES, 28, 28, 1], "float32")
    labels = np.arange(EXAMPLES, dtype=np.int32) % 2
    made = ImageData(images, labels, images[:0], labels[:0])
    monkeypatch.setattr(rates, "load", lambda name: made)
    return made


def multiset(batches):
    """The examples of batches, whatever their order and structure."""
    rows = [
        tuple(np.asarray(leaf).astype("float32").tobytes() for leaf in tf.nest.flatten(example))
        for batch in batches
        for example in tf.data.Dataset.from_tensor_slices(batch)
    ]
    return sorted(rows)


@pytest.mark.parametrize("source", ["arrays", "images", "records"])
def test_both_sides_read_the_same_examples(data, monkeypatch, tmp_path, source):
    monkeypatch.setattr(cases, "_iterate", lambda dataset: lambda: list(dataset))
    options = DataOptions((source,), EXAMPLES, image_files=EXAMPLES, image_size=28, batch_size=5)
    found = list(rates._cases(options, str(tmp_path)))
    for case in found:
        if cases.TF_DATA not in case.sides:
            continue  # `fit` counts batches only
        batches = {side: read() for side, read in case.sides.items()}
        assert multiset(batches[cases.TFDP]) == multiset(batches[cases.TF_DATA])
        assert len(multiset(batches[cases.TFDP])) == EXAMPLES == case.examples
        if not case.shuffled:
            for ours, theirs in zip(*batches.values(), strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)
    assert {case.shuffled for case in found} == {False, True}


def test_a_run_prints_every_case_writes_json_and_leaves_no_files(data, monkeypatch, tmp_path):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(measure, "RESTORED_STEP", 3)
    options = DataOptions(
        examples=EXAMPLES,
        image_files=EXAMPLES,
        image_size=28,
        batch_size=8,
        rounds=2,
        json=tmp_path / "results.json",
    )
    console = Console(width=120, file=io.StringIO())
    assert rates.run(options, console) == 0
    printed = console.file.getvalue()
    for what in ("arrays, mapped", "arrays, by fit", "JPEG files", "records, mapped", "Keras"):
        assert what in printed
    assert "from `restore` at step 3 to the first batch" in printed
    *results, figures = json.loads((tmp_path / "results.json").read_text())["results"]
    assert len(results) == 12
    for result in results:
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in result["seconds"].values())
    assert figures["restore_seconds"] > 0
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    # TensorFlow's AutoGraph keeps what it converts first in this process until that ends.
    assert not [name for name in left if not name.startswith("__autograph_generated_file")]


def test_two_workers_read_half_of_a_record_file_each(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "_RECORDS", 64)
    assert measure.fractions_read(str(tmp_path)) == pytest.approx([0.5, 0.5], abs=0.001)


def test_above_one_tfdp_is_the_faster():
    seconds = {cases.TFDP: [0.10, 0.20, 0.20], cases.TF_DATA: [0.15, 0.40, 0.10]}
    result = {"what": "arrays", "shuffled": True, "examples": 1000, "seconds": seconds}
    console = Console(width=120, file=io.StringIO())
    console.print(rates.rates_table(8, [result]))
    rows = [line.split("│") for line in console.file.getvalue().splitlines() if "tf.data" in line]
    assert [cell.strip() for cell in rows[0][1:-1]] == [
        "arrays",
        "shuffled",
        "tf.data",
        "6.7",
        "2.5-10.0",
        "0.75",
        "1.50",
    ]


def test_a_side_that_leaves_batches_out_is_an_error():
    case = cases.Case("arrays", False, 17, {cases.TFDP: lambda: 2})
    with pytest.raises(RuntimeError, match="must read the 3 batches of arrays; received 2"):
        measure.seconds_of(case, 8, rounds=1)


def test_the_folder_of_images_has_the_classes_and_the_size(tmp_path):
    images = np.linspace(0, 1, 3 * 784, dtype="float32").reshape(3, 28, 28, 1)
    files.write_images(str(tmp_path), images, np.array([4, 4, 9]), 56)
    paths, labels = zip(*files.image_paths(str(tmp_path)), strict=True)
    assert labels == (4, 4, 9)
    pixels = tf.io.decode_jpeg(tf.io.read_file(paths[2]))
    assert pixels.shape == (56, 56, 1)
    np.testing.assert_allclose(pixels[::2, ::2] / 255, images[2], atol=0.03)


def test_records_need_an_extra_that_is_named(capsys, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "google_crc32c" else there(name)
    )
    with pytest.raises(SystemExit):
        main(["data"])
    assert "pip install 'tfdp[records]'" in capsys.readouterr().err
