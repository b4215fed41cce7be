"""Images, from scikit-learn, Debian's package or the network."""

import gzip
import sys

import numpy as np
import pytest

from tfdp.tools.demo import image_sets


def write_idx(path, array):
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def debian_package(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("t10k", 4)):
        pixels = generator.integers(256, size=(count, 28, 28), dtype=np.uint8)
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8))
    monkeypatch.setattr(image_sets, "DEBIAN_FASHION_MNIST", tmp_path)
    return tmp_path


def test_digits_are_split_once_and_scaled():
    digits = image_sets.load("digits")
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.float32
    assert (digits.train_images.min(), digits.train_images.max()) == (0.0, 1.0)
    assert set(digits.train_labels) == set(digits.test_labels) == set(range(10))


def test_fashion_mnist_is_read_from_debian_s_package(debian_package):
    fashion = image_sets.load("fashion_mnist")
    assert fashion.train_images.shape == (6, 28, 28, 1)
    assert fashion.train_images.max() <= 1.0
    np.testing.assert_array_equal(fashion.test_labels, range(4))


def test_without_files_and_network_the_error_says_how_to_get_them(tmp_path, monkeypatch):
    def no_network():
        raise Exception("URL fetch failure")

    monkeypatch.setattr(image_sets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    monkeypatch.setattr("keras.datasets.fashion_mnist.load_data", no_network)
    with pytest.raises(
        image_sets.DataUnavailableError, match="apt-get install dataset-fashion-mnist"
    ):
        image_sets.load("fashion_mnist")


def test_an_idx_file_of_another_type_is_refused(tmp_path):
    path = tmp_path / "floats.gz"
    path.write_bytes(gzip.compress(b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0"))
    with pytest.raises(ValueError, match="received 00 00 0d"):
        image_sets.read_idx(path)


def test_an_idx_file_that_is_cut_short_is_refused(tmp_path):
    path = tmp_path / "short.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"))
    with pytest.raises(ValueError, match="received 3"):
        image_sets.read_idx(path)


def test_without_scikit_learn_the_error_says_how_to_get_the_digits(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(image_sets.DataUnavailableError, match="do `pip install scikit-learn`"):
        image_sets.load("digits")
