"""The source of data sets of TensorFlow Datasets, with random access."""

from __future__ import annotations

import importlib
import os
from typing import Any

import tensorflow as tf

from tfdp.data.sources.abstract import AbstractIndexedSource
from tfdp.data.sources.array_records import ArrayRecordSource
from tfdp.data.sources.record_files import RecordSpan
from tfdp.data.sources.records import TFRecordSource

_READERS = {"tfrecord": TFRecordSource, "array_record": ArrayRecordSource}


def as_tfds_source(
    builder_or_name: Any,
    split: Any,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    as_supervised: bool | None = None,
    decoders: Any = None,
    download: bool = False,
) -> TFDSSource:
    """Makes a source of a split of a data set of TensorFlow Datasets.

    Args:
      builder_or_name: A `tfds.core.DatasetBuilder`; a name as `tfds.builder` takes it, such as
        "mnist"; or the folder of a prepared data set, which holds its dataset_info.json.
      split: "train", "train[:80%]", "train+test", or a `tfds.core.ReadInstruction`.
      data_dir: The folder where the data set of this name lies. None: the folder of TensorFlow
        Datasets.
      as_supervised: Whether an example is a tuple (x, y), as `fit` wants it, and no dict. None: a
        tuple if the data set says what x and y are.
      decoders: The argument of `builder.as_dataset`: a nest of `tfds.decode.Decoder`, or a
        `tfds.decode.PartialDecoding`.
      download: Whether to download and prepare the data set if it is not there; with several
        processes on a file system, have it prepared beforehand.

    Returns:
      The source, in the order of the files, which is that of `builder.as_dataset(split)` with
      `tfds.ReadConfig(interleave_cycle_length=1)`.

    Raises:
      ImportError: tensorflow-datasets is not installed.
      ValueError: The data set is not prepared, has no such split or nothing in it, or is stored in
        another format than TFRecord or ArrayRecord.

    Cost: the cost of `TFRecordSource` or `ArrayRecordSource`; each example is decoded by itself.

    >>> import contextlib, tempfile
    >>> import tensorflow_datasets as tfds
    >>> builder = tfds.testing.DummyDataset(data_dir=tempfile.mkdtemp())
    >>> with contextlib.redirect_stdout(None):
    ...     builder.download_and_prepare()
    >>> source = as_tfds_source(builder, "train[1:]")
    >>> len(source), [spec.dtype.name for spec in source.element_spec]
    (2, ['int64', 'int64'])
    """
    tfds = _library()
    builder = builder_or_name
    if isinstance(builder, str | os.PathLike):
        builder = _builder(tfds, os.fspath(builder), data_dir)
    elif not isinstance(builder, tfds.core.DatasetBuilder):
        raise TypeError(
            "`builder_or_name` must be a builder of TensorFlow Datasets or a name, but received a "
            f'{type(builder).__name__}. Use tfds.builder("mnist").'
        )
    elif data_dir is not None:
        raise ValueError(
            f"`data_dir` must come with a name, but received {data_dir!r} with the builder of "
            f"{builder.info.full_name}. Use {type(builder).__name__}(data_dir=...) instead."
        )
    if download:
        builder.download_and_prepare()
    if not builder.info.splits:
        raise ValueError(
            f"The data set {builder.info.full_name!r} must be prepared, but it is not in "
            f"{os.fspath(builder.data_dir)!r}. Call builder.download_and_prepare() once, or use "
            "as_tfds_source(..., download=True)."
        )
    return TFDSSource(builder, split, as_supervised=as_supervised, decoders=decoders)


class TFDSSource(AbstractIndexedSource):
    """The examples of a split of a prepared builder; see `as_tfds_source` for the arguments.

    Attributes:
      records: The source of the serialized examples.

    Cost: the same as for `as_tfds_source`.
    """

    vectorized = False

    def __init__(
        self, builder: Any, split: Any, *, as_supervised: bool | None, decoders: Any
    ) -> None:
        info = builder.info
        self._name = f"{info.full_name} {split}"
        self._keys = _supervised_keys(info, as_supervised)
        self._features, self._decoders = info.features, decoders
        if isinstance(decoders, _library().decode.PartialDecoding):
            self._features = decoders.extract_features(info.features)
            self._decoders = decoders.decoders
        stored = getattr(info.file_format, "value", None)
        if stored not in _READERS:
            raise ValueError(
                f"The data set {info.full_name!r} must be stored as TFRecord or ArrayRecord, but "
                f'is stored as {stored}. Prepare it with file_format="array_record", or pass '
                "builder.as_dataset(split=...), which is read as a stream."
            )
        self.records: AbstractIndexedSource = _READERS[stored](_spans(info, split))
        # The map traces `_decode`; the empty string is never parsed.
        self.element_spec = tf.data.Dataset.from_tensors("").map(self._decode).element_spec
        self.fingerprint = f"{info.full_name}, {self.records.fingerprint}"
        self.fingerprint_covers = f"name and version; {self.records.fingerprint_covers}"

    def __len__(self) -> int:
        return len(self.records)

    def describe(self) -> str:
        """Names the data set, its version, and the split."""
        return self._name

    def rows(self, indices: tf.Tensor) -> Any:
        """Reads the examples together, and decodes them one by one."""
        serialized = self.records.rows(indices)
        return tf.map_fn(self._decode, serialized, fn_output_signature=self.element_spec)

    def row(self, index: tf.Tensor) -> Any:
        """Reads and decodes one example."""
        return self._decode(self.records.row(index))

    def _decode(self, serialized: tf.Tensor) -> Any:
        example = self._features.deserialize_example(serialized, decoders=self._decoders)
        if self._keys is None:
            return example
        return tf.nest.map_structure(lambda key: example[key], self._keys)


def _library() -> Any:
    try:
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            "A data set of TensorFlow Datasets needs tensorflow-datasets, which cannot be "
            f"imported: {error}. Use pip install 'tfdp[tfds]'."
        ) from error


def _builder(tfds: Any, name: str, data_dir: Any) -> Any:
    if os.path.isfile(os.path.join(name, "dataset_info.json")):
        return tfds.builder_from_directory(name)
    return tfds.builder(name, data_dir=data_dir)


def _supervised_keys(info: Any, as_supervised: bool | None) -> Any:
    if as_supervised and not info.supervised_keys:
        raise ValueError(
            "With as_supervised=True the data set must say what x and y are, but "
            f"{info.full_name!r} does not. Use as_supervised=False and choose from the dict "
            f"with keys {sorted(info.features)}."
        )
    return info.supervised_keys if as_supervised in (True, None) else None


def _spans(info: Any, split: Any) -> list[RecordSpan]:
    """Returns the parts of files that the split consists of."""
    known = ", ".join(repr(name) for name in info.splits)
    try:
        instructions = info.splits[split].file_instructions
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"`split` must be a part or sum of the splits of {info.full_name!r}, {known}, stored "
            f'in files, but received {split!r}: {error} Use such as split="train[:80%]".'
        ) from error
    spans = [RecordSpan(part.filename, part.skip, part.take) for part in instructions if part.take]
    if not spans:
        raise ValueError(
            f"`split` must hold at least one example, but {split!r} of {info.full_name!r} is "
            f"empty. Use one of {known}, or a larger part."
        )
    return spans
