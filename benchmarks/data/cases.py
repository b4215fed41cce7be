"""The same examples, read by `tfdp.data.pipeline` and by code that one would write by hand."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp
from benchmarks.data.files import FEATURES, image_paths
from tfdp import keras as tfdp_keras

# A function that reads an epoch and returns the number of its batches.
Read = Callable[[], int]

TFDP = "tfdp"
TF_DATA = "tf.data"
KERAS = "Keras"

_MEAN, _DEVIATION = 0.286, 0.353


@dataclasses.dataclass(frozen=True)
class Case:
    """The examples to read, and the sides that read them.

    Attributes:
      what: The examples, and the operations on them.
      shuffled: Whether they are shuffled over all examples, or read in order.
      examples: The number of examples of an epoch.
      sides: For each side a function that reads an epoch.
    """

    what: str
    shuffled: bool
    examples: int
    sides: dict[str, Read]


def array_cases(images: np.ndarray, labels: np.ndarray, batch_size: int) -> Iterator[Case]:
    """Yields cases of arrays: unchanged, normalized one by one, and through `fit`.

    Keras' own reader of arrays has no public name, so it is timed through `fit`, with a model whose
    step does nothing.
    """
    arrays, count = (images, labels), len(images)
    for what, map_fn in (("arrays", None), ("arrays, mapped", _normalized)):
        for shuffled in (False, True):
            dataset = tf.data.Dataset.from_tensor_slices(arrays)
            if shuffled:
                dataset = dataset.shuffle(count)
            if map_fn is not None:
                dataset = dataset.map(map_fn, num_parallel_calls=tf.data.AUTOTUNE)
            dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)
            pipeline = _pipeline(arrays, batch_size, shuffled, map_fn)
            sides = {TFDP: _iterate(pipeline), TF_DATA: _iterate(dataset)}
            yield Case(what, shuffled, count, sides)
    for shuffled in (False, True):
        pipeline = _pipeline(arrays, batch_size, shuffled)
        sides = {
            TFDP: _fit(pipeline),
            KERAS: _fit(images, labels, batch_size=batch_size, shuffle=shuffled),
        }
        yield Case("arrays, by fit", shuffled, count, sides)


def image_cases(folder: str, batch_size: int) -> Iterator[Case]:
    """Yields cases of JPEG files, decoded; the code by hand shuffles the paths."""
    paths, labels = map(list, zip(*image_paths(folder), strict=True))
    source = tfdp.data.sources.ImageDirectorySource(folder, color_mode="grayscale")
    for shuffled in (False, True):
        dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
        if shuffled:
            dataset = dataset.shuffle(len(paths))
        dataset = dataset.map(_decoded, num_parallel_calls=tf.data.AUTOTUNE)
        dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)
        pipeline = _pipeline(source, batch_size, shuffled)
        sides = {TFDP: _iterate(pipeline), TF_DATA: _iterate(dataset)}
        yield Case("JPEG files", shuffled, len(paths), sides)


def record_cases(path: str, batch_size: int) -> Iterator[Case]:
    """Yields cases of records: parsed a batch at a time, or one by one to be normalized.

    The code by hand shuffles the serialized records.
    """
    source = tfdp.data.sources.TFRecordSource(path, FEATURES)
    count = len(source)
    for shuffled in (False, True):
        serialized = tf.data.TFRecordDataset(path)
        if shuffled:
            serialized = serialized.shuffle(count)
        parsed = serialized.batch(batch_size).map(
            lambda batch: tf.io.parse_example(batch, FEATURES), num_parallel_calls=tf.data.AUTOTUNE
        )
        pipeline = _pipeline(source, batch_size, shuffled)
        sides = {TFDP: _iterate(pipeline), TF_DATA: _iterate(parsed.prefetch(tf.data.AUTOTUNE))}
        yield Case("records", shuffled, count, sides)
        normalized = serialized.map(_parsed_and_normalized, num_parallel_calls=tf.data.AUTOTUNE)
        dataset = normalized.batch(batch_size).prefetch(tf.data.AUTOTUNE)
        pipeline = _pipeline(source, batch_size, shuffled, _normalized_dict)
        sides = {TFDP: _iterate(pipeline), TF_DATA: _iterate(dataset)}
        yield Case("records, mapped", shuffled, count, sides)


class _Nothing(keras.Model):
    """A model whose training step only takes the batch."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": tf.constant(0.0)}


def _pipeline(source: Any, batch_size: int, shuffled: bool, map_fn: Any = None) -> tf.data.Dataset:
    return tfdp.data.pipeline(source, batch_size, seed=0, shuffle=shuffled, map_fn=map_fn)


def _iterate(dataset: tf.data.Dataset) -> Read:
    return lambda: sum(1 for _ in dataset)


def _fit(*data: Any, **options: Any) -> Read:
    tfdp_keras.install()  # no strategy has done so
    model = _Nothing()
    model.compile()
    counter = _Counter()
    arguments = {"verbose": 0, "callbacks": [counter], **options}

    def read() -> int:
        model.fit(*data, **arguments)
        return counter.batches

    return read


class _Counter(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1


def _normalized(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return (image - _MEAN) / _DEVIATION, label


def _normalized_dict(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return _normalized(example["image"], example["label"])


def _parsed_and_normalized(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return _normalized_dict(tf.io.parse_single_example(serialized, FEATURES))


def _decoded(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.io.decode_jpeg(tf.io.read_file(path), channels=1), label
