"""The two sets of images of the demo and the benchmarks, split and scaled."""

import dataclasses
import gzip
import pathlib

import numpy as np

# The folder where Debian's and Ubuntu's package `dataset-fashion-mnist` puts its files.
DEBIAN_FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")

_IDX_UINT8 = 0x08


class DataUnavailableError(RuntimeError):
    """An error where the images are neither on this machine nor available over the network."""


@dataclasses.dataclass(frozen=True)
class ImageData:
    """A data set of labelled grey images.

    Args:
      train_images: Float32 in [0, 1], shape (examples, height, width, 1).
      train_labels: Int32 in [0, 10), shape (examples,).
      test_images: Images like `train_images`, not used for training.
      test_labels: Labels like `train_labels`.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(name: str) -> ImageData:
    """Loads `"digits"` or `"fashion_mnist"`.

    Raises:
      DataUnavailableError: Fashion-MNIST is not on this machine and cannot be downloaded, or
        scikit-learn, for the digits, is not installed.

    >>> load("digits").train_images.shape
    (1437, 8, 8, 1)
    """
    return {"digits": _load_digits, "fashion_mnist": _load_fashion_mnist}[name]()


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Reads a gzipped IDX file of bytes, the format in which MNIST and its kin are published.

    Returns:
      A uint8 array of the shape that the file states.

    Raises:
      ValueError: The file is not an IDX file of bytes, or is cut short.
    """
    with gzip.open(path, "rb") as file:
        content = file.read()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UINT8:
        raise ValueError(
            f"`{path}` must be a gzipped IDX file of bytes (starting with 00 00 08); "
            f"received {content[:3].hex(' ')}; download it again."
        )
    rank = content[3]
    header_bytes = 4 + 4 * rank
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=rank, offset=4))
    values = np.frombuffer(content, np.uint8, offset=header_bytes)
    if values.size != np.prod(shape):
        raise ValueError(
            f"`{path}` must hold {shape} = {np.prod(shape)} bytes; received {values.size}; "
            "download it again."
        )
    return values.reshape(shape)


def _load_digits() -> ImageData:
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise DataUnavailableError(
            "scikit-learn, which has the images of digits, must be installed; received "
            f"{error}; do `pip install scikit-learn`."
        ) from error

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8, 1) / 16.0).astype(np.float32)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int32), test_size=360, stratify=labels, random_state=0
    )
    return ImageData(train_images, train_labels, test_images, test_labels)


def _load_fashion_mnist() -> ImageData:
    if DEBIAN_FASHION_MNIST.is_dir():
        (train_images, train_labels), (test_images, test_labels) = (
            tuple(
                read_idx(DEBIAN_FASHION_MNIST / f"{split}-{part}-ubyte.gz")
                for part in ("images-idx3", "labels-idx1")
            )
            for split in ("train", "t10k")
        )
    else:
        (train_images, train_labels), (test_images, test_labels) = _download_fashion_mnist()
    return ImageData(
        _scale(train_images),
        train_labels.astype(np.int32),
        _scale(test_images),
        test_labels.astype(np.int32),
    )


def _download_fashion_mnist():
    import keras

    try:
        return keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # Keras raises a bare Exception where a download fails.
        raise DataUnavailableError(
            "Fashion-MNIST must be on this machine or downloadable; received neither "
            f"{DEBIAN_FASHION_MNIST} nor an answer from Keras' server ({error}); "
            "do `sudo apt-get install dataset-fashion-mnist` (Debian, Ubuntu), or on a machine "
            'with a network `python -c "import keras; keras.datasets.fashion_mnist.load_data()"` '
            "and copy ~/.keras/datasets/fashion-mnist here."
        ) from error


def _scale(images: np.ndarray) -> np.ndarray:
    # The images are float32 from the start: float64 would take twice the memory.
    return images[..., np.newaxis].astype(np.float32) / np.float32(255)
