"""The choice of a source for what a user hands over."""

import os
import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.data.sources.abstract import AbstractSource
from tfdp.data.sources.arrays import ArraySource
from tfdp.data.sources.record_files import RecordSpan

# Libraries whose arrays are no NumPy arrays, and are indexed otherwise than by example or on a
# device.
_ARRAY_LIBRARIES = {"pandas", "torch", "jax", "jaxlib"}


def as_source(source: Any, split: Any = None) -> AbstractSource:
    """Returns the source that reads `source`.

    Args:
      source: One of

        - a source: itself;
        - an array or tensor, or a tuple, list or dict of them, with the examples along axis 0: an
          `ArraySource`. A list of numbers is an array;
        - a `tf.data.Dataset` of single examples: a `DatasetSource`;
        - a path, pattern or list of them: of files whose name holds ".tfrecord" a `TFRecordSource`,
          ".array_record" an `ArrayRecordSource`; of a folder with a folder of images for each class
          an `ImageDirectorySource`;
        - a builder of TensorFlow Datasets, or its name, with `split`: `as_tfds_source`;
        - an object with `__len__` and `__getitem__`, such as a `tfds.data_source`: a
          `SequenceSource`.
      split: The split of a data set of TensorFlow Datasets, such as "train[:80%]".

    Returns:
      The source.

    Raises:
      TypeError: `source` is none of these.
      ValueError: `split` is there and not wanted, or wanted and not there; a path leads nowhere.

    Cost: the cost of the chosen class; this function opens no file itself.

    >>> type(as_source([[1.0, 2.0], [3.0, 4.0]])).__name__
    'ArraySource'
    >>> type(as_source(tf.data.Dataset.range(3))).__name__
    'DatasetSource'
    """
    if _is_builder(source) or (split is not None and isinstance(source, str | os.PathLike)):
        return _tfds(source, split)
    if split is not None:
        raise ValueError(
            "`split` must come with a builder or a name of TensorFlow Datasets, but received "
            f"split={split!r} with a {_kind(source)}. Leave `split` out."
        )
    if isinstance(source, AbstractSource):
        return source
    if isinstance(source, tf.data.Dataset):
        from tfdp.data.sources.streams import DatasetSource

        return DatasetSource(source)
    if _paths(source):
        return _files(source)
    if _is_nest_of_arrays(source):
        return ArraySource(source)
    if isinstance(source, keras.utils.PyDataset):
        raise TypeError(
            "`source` must give single examples, but a keras.utils.PyDataset gives batches: "
            f"received a {_kind(source)}. Pass the arrays or files that it reads, or an object "
            "whose `__getitem__` returns one example."
        )
    if not isinstance(source, bytes) and all(
        hasattr(source, method) for method in ("__len__", "__getitem__")
    ):
        return _sequence(source)
    raise TypeError(
        "`source` must be arrays or a nest of them, a tf.data.Dataset, a path of a folder of "
        "images or of TFRecord or ArrayRecord files, a builder of TensorFlow Datasets, or an "
        f"object with `__len__` and `__getitem__`, but received a {_kind(source)}. Of a Python "
        "iterator, use tf.data.Dataset.from_generator(...)."
    )


def _is_builder(source: Any) -> bool:
    """Returns whether `source` is a builder, without an import.

    Anybody who has a builder has imported TensorFlow Datasets, and all of it: an import that fails
    within, as where protobuf is too old for it, leaves a module without `core`.
    """
    library = getattr(sys.modules.get("tensorflow_datasets"), "core", None)
    return library is not None and isinstance(source, library.DatasetBuilder)


def _tfds(source: Any, split: Any) -> AbstractSource:
    from tfdp.data.sources.tfds import as_tfds_source

    if split is None:
        raise ValueError(
            "A builder of TensorFlow Datasets must come with `split`, but received "
            f'{source.name!r} without. Use split="train".'
        )
    return as_tfds_source(source, split)


def _paths(source: Any) -> list[str]:
    """Returns the paths that `source` consists of; none if it is anything else."""
    several = source if isinstance(source, list | tuple) else [source]
    if isinstance(source, RecordSpan):
        several = [source]
    spans = [item.path if isinstance(item, RecordSpan) else item for item in several]
    if not all(isinstance(item, str | os.PathLike) for item in spans):
        return []
    return [os.fspath(item) for item in spans]


def _files(source: Any) -> AbstractSource:
    paths = _paths(source)
    names = [os.path.basename(path) for path in paths]
    if all(".array_record" in name for name in names):
        from tfdp.data.sources.array_records import ArrayRecordSource

        return ArrayRecordSource(source)
    if all(".tfrecord" in name for name in names):
        from tfdp.data.sources.records import TFRecordSource

        return TFRecordSource(source)
    if isinstance(source, str | os.PathLike) and tf.io.gfile.isdir(paths[0]):
        return _folder(paths[0])
    raise ValueError(
        "A path in `source` must be a folder of images, or its name must hold .tfrecord or "
        f".array_record, all of one kind, but received {source!r}. Use "
        "tfdp.data.sources.TFRecordSource(paths) for TFRecord files of other names, "
        'split="train" with a name of TensorFlow Datasets, np.array(...) where strings are the '
        "examples."
    )


def _folder(path: str) -> AbstractSource:
    from tfdp.data.sources.image_folders import ImageDirectorySource, class_folders

    if not class_folders(path):
        raise ValueError(
            "A folder in `source` must have a folder of images for each class, but there is none "
            f"in {path!r}. Name the files of records, such as {os.path.join(path, '*.tfrecord')!r}"
            ", or use tfdp.data.sources.ImageDirectorySource(path, labels=None)."
        )
    return ImageDirectorySource(path)


def _is_nest_of_arrays(source: Any) -> bool:
    library = type(source).__module__.split(".")[0]
    return (
        isinstance(source, np.ndarray | list | tuple | Mapping)
        or tf.is_tensor(source)
        or isinstance(source, tf.Variable)
        or (library in _ARRAY_LIBRARIES and hasattr(source, "__array__"))
    )


def _sequence(source: Any) -> AbstractSource:
    from tfdp.data.sources.sequences import SequenceSource

    # A data source of TensorFlow Datasets knows its name and version.
    info = getattr(source, "dataset_info", None)
    if info is None:
        return SequenceSource(source)
    name = f"{info.full_name} {source.split} of {len(source)}"
    return SequenceSource(source, fingerprint=name)


def _kind(source: Any) -> str:
    return type(source).__name__
